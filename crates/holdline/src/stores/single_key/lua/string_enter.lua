-- Takes or renews a lock that is a string: the ticket's id and its note, with an expiry. As SET NX
-- PX; and if the reply was lost, the same call says whether it worked. KEYS[1] is the lock. ARGV:
-- id; lease in ms; note; 1 to renew only. Returns the id if it holds the lock; 0 if it has lost it;
-- else the time to live of another owner's lock, in ms, as {ms}, which is -1 if that has no expiry.
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
