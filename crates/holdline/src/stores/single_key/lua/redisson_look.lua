-- The fields of a lock that is a hash, its time to live in ms, the note at ARGV[1], and the
-- evictions at ARGV[2]. An error if it is no such lock.
local fields = redis.call('HGETALL', KEYS[1])
local refused = foreign(fields)
if refused then return redis.error_reply(refused) end
return {fields, redis.call('PTTL', KEYS[1]), redis.pcall('GET', ARGV[1]),
  redis.pcall('GET', ARGV[2])}
