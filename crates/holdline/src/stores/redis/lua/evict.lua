-- Removes somebody's place by force, tells its process, and spends a token, so that whoever had it
-- is behind the newest one. ARGV: id idle. Answers the token, or nil if there is no such place.
expire()
local token = false
if record then
  local weight, seq, _, channel = parse(record)
  depart(ARGV[1], weight, seq)
  last = math.min(math.max(last + 1, now), MOST)
  token = last
  redis.pcall('PUBLISH', channel, 'a' .. ARGV[1])
end
if changed then save() end
announce()
return token
