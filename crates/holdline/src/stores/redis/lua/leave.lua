-- The second part of leaving: a line of many places, or a ticket to be barred.
--
-- A ticket is barred when an enter of it may still be under way on another connection: so that it
-- cannot take a place that nobody would ever give up.
local there = record and 1 or 0
if record then
  local w, s = parse(record)
  remove(id, w, s)
  advance()
end
if ARGV[3] then
  bar, changed = math.max(bar, now + ARGV[3]), true
  far = math.max(far, bar) -- the line's key outlives what it says
  call('ZREMRANGEBYSCORE', barred, '-inf', now)
  call('ZADD', barred, now + ARGV[3], id)
  call('PEXPIRE', barred, math.max(1, math.ceil((bar - now) / 1000)))
end
if changed or kind == 1 then save() end
announce()
return there
