-- Removes somebody's place by force, and tells its process. Its head is leave_head.lua, with a time
-- of 0 to bar it for; ARGV[5] says by whom and why. Answers a token that is higher than any of the
-- place's own, and no higher than that of anybody behind it: the next place's, or a new one if it
-- was the last. Nil if there is no such place.
local token, channel = false, nil
if record then
  local behind = from(record.s + 1)
  channel = channel_of(record)
  remove(record)
  advance()
  token = behind and behind.s
  if not token then
    last = math.min(math.max(last + 1, now), 9007199254740991)
    token = last
  end
end
if changed then save() end
if token then
  -- Before it is told, so that it finds out why.
  evicted(line .. ':v', id, ARGV[5])
  redis.pcall('PUBLISH', channel, 'a' .. id)
end
announce()
return token
