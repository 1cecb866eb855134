-- Deletes a lock that is a hash, if it has the field ARGV[1], and notifies its waiters. ARGV[2] is
-- the key of the note, ARGV[3] the command to publish, ARGV[4] the channel. For an eviction:
-- ARGV[5] is the key of the evictions, ARGV[6] the ticket's digits, ARGV[7] the note about it.
-- Returns 0 if there is no such lock, -1 if publishing failed, and otherwise 1 and the number of
-- clients that were notified.
if redis.call('HEXISTS', KEYS[1], ARGV[1]) == 0 then return 0 end
redis.call('DEL', KEYS[1])
redis.pcall('DEL', ARGV[2])
if ARGV[5] then evicted(ARGV[5], ARGV[6], ARGV[7]) end
local told = redis.pcall(ARGV[3], ARGV[4], '0')
return type(told) == 'number' and 1 + told or -1
