-- Takes or renews a lock that is a string: the ticket's id and its note, with an expiry. What SET
-- NX PX does; and if its answer was lost, the same call says whether it worked.
-- KEYS[1] is the lock. ARGV: id; lease in ms; note; 1 to renew only.
-- Answers the id if it is its lock; 0 it was, but is not any more; else the time to live of somebody
-- else's, in ms, as {ms}, which is -1 if theirs has no end.
local value = redis.call('GET', KEYS[1])
local mine = ARGV[1] .. ARGV[3]
if value and string.sub(value, 1, 32) == ARGV[1] then
  if redis.call('PTTL', KEYS[1]) < tonumber(ARGV[2]) then
    redis.call('PEXPIRE', KEYS[1], ARGV[2])
  end
  if value ~= mine then redis.call('SET', KEYS[1], mine, 'KEEPTTL') end
  return ARGV[1]
end
if ARGV[4] == '1' then return 0 end
if value then return {redis.call('PTTL', KEYS[1])} end
redis.call('SET', KEYS[1], mine, 'PX', ARGV[2], 'NX')
return ARGV[1]
