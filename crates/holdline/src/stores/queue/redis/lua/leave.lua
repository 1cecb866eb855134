-- The second part of leaving: a line of several places, or a ticket to be barred.
--
-- A ticket is barred when an enter of it may still be in flight on another connection: so that it
-- cannot take a place that no client would ever leave.
if barred_for then
  bar, changed = math.max(bar, now + barred_for), true
  call('ZREMRANGEBYSCORE', barred, '-inf', now)
  call('ZADD', barred, now + barred_for, id)
  if call('ZCARD', barred) > 4096 then -- bounded: the oldest are no longer barred
    local oldest = call('ZRANGE', barred, 255, 255, 'WITHSCORES')[2]
    call('ZREMRANGEBYSCORE', barred, '-inf', oldest)
  end
  call('PEXPIRE', barred, life(bar))
end
local found = record and 1 or 0
if record then
  remove(record)
  advance()
end
if changed then save() end
announce()
return found
