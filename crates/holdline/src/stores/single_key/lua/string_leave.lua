-- Deletes a lock that is a string, if it begins with ARGV[1]. For an eviction, it must be equal to
-- ARGV[1]; ARGV[2] is then the key of the evictions, ARGV[3] the ticket's digits, and ARGV[4] the
-- note about it.
local value = redis.call('GET', KEYS[1])
if not value then return 0 end
if (ARGV[2] and value or string.sub(value, 1, 32)) ~= ARGV[1] then return 0 end
local gone = redis.call('DEL', KEYS[1])
if ARGV[2] then evicted(ARGV[2], ARGV[3], ARGV[4]) end
return gone
