-- Takes or renews a lock that is a hash, as Redisson's RLock has it: one field, the owner, with its
-- count of holds, and an expiry. Ours is always held once, however often it is asked for; and it
-- has a second field, `mode`, by which Redisson's read-write lock sees that the name is taken.
-- KEYS[1] is the lock. ARGV: owner; lease in ms; note; 1 to renew only; the key of the note.
-- Answers the owner if it is his; 0 it was, but is not any more; else the time to live of somebody
-- else's, in ms, as {ms}, which is -1 if theirs has no end. It is an error if it is no such lock.
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
-- Redisson knows nothing of it. Without room or permission for it, the lock is a lock all the same.
redis.pcall('SET', ARGV[5], owner .. ' ' .. ARGV[3], 'PX', lease)
return owner
