-- Evicts a ticket, and notifies its process. Its head is leave_head.lua, with a barred_for of 0;
-- ARGV[5] is the note that says by whom and why, ARGV[6] the span of clock.lua. Returns a token
-- that is higher than any of the place's own, and no higher than that of any place behind it: the
-- next place's, or a new one if it was the last. Nil if there is no such place.
local token, channel = false, nil
if record then
  local behind = from(record.s + 1)
  channel = channel_of(record)
  remove(record)
  advance()
  token = behind and behind.s
  if not token then
    local span = tonumber(ARGV[6])
    if span > 0 and last < now - now % span then reached(line, span) end
    last = math.min(math.max(last + 1, now), MOST)
    token = last
  end
end
if changed then save() end
if token then
  -- Before the notice, so that the note is there when the process looks for it.
  evicted(line .. ':v', id, ARGV[5])
  redis.pcall('PUBLISH', channel, 'a' .. id)
end
announce()
return token
