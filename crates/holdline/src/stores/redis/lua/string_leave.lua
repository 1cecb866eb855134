-- Deletes a lock that is a string, if it begins with ARGV[1], or (with ARGV[2]) if it is ARGV[1].
local value = redis.call('GET', KEYS[1])
if not value then return 0 end
if (ARGV[2] and value or string.sub(value, 1, 32)) ~= ARGV[1] then return 0 end
return redis.call('DEL', KEYS[1])
