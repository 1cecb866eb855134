-- Takes or renews a lock that is a hash, as in Redisson's RLock: one field, the owner, with its
-- count of holds, and an expiry. Our count is always 1, also after repeated requests; and there is
-- a second field, `mode`, by which Redisson's read-write lock sees that the name is taken. KEYS[1]
-- is the lock. ARGV: owner; lease in ms; note; 1 to renew only; the key of the note. Returns the
-- owner if it holds the lock; 0 if it has lost it; else the time to live of another owner's lock,
-- in ms, as {ms}, which is -1 if that has no expiry. An error if it is no such lock.
local call, lock, owner, lease = redis.call, KEYS[1], ARGV[1], tonumber(ARGV[2])
if call('HEXISTS', lock, owner) == 1 then
  local left = call('PTTL', lock)
  if left < lease then call('PEXPIRE', lock, lease) else lease = left end
else
  if ARGV[4] == '1' then return 0 end
  if call('EXISTS', lock) == 1 then
    local refused = foreign(call('HGETALL', lock))
    if refused then return redis.error_reply(refused) end
    return {call('PTTL', lock)}
  end
  call('HSET', lock, owner, 1, 'mode', 'holdline')
  call('PEXPIRE', lock, lease)
end
-- The note. Redisson does not use it; without memory or permission for it, the lock is still valid.
redis.pcall('SET', ARGV[5], owner .. ' ' .. ARGV[3], 'PX', lease)
return owner
