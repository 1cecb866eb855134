-- Gives a place up. One round trip. ARGV: id idle bar
-- If bar is over 0, an enter of this ticket may still be under way on another connection: for so
-- long, it is refused. Answers 1 if there was a place, else 0.
expire()
local there = 0
if record then
  local weight, seq = parse(record)
  depart(ARGV[1], weight, seq)
  there = 1
end
local bar_for = tonumber(ARGV[3])
if bar_for > 0 then
  bar, changed = math.max(bar, now + bar_for), true
  far = math.max(far, bar)
  call('ZREMRANGEBYSCORE', barred, '-inf', now)
  call('ZADD', barred, now + bar_for, ARGV[1])
  call('PEXPIRE', barred, math.ceil((bar - now) / 1000))
end
if changed then save() end
announce()
return there
