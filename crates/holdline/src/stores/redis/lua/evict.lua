-- Removes somebody's place by force, tells its process, and spends a token, so that whoever had it is
-- behind the newest one. ARGV as in leave_one.lua, but ARGV[3] is 0. Answers the token, or nil if
-- there is no such place.
local token = false
if record then
  local w, s, _, channel = parse(record)
  depart(id, w, s)
  last = math.min(math.max(last + 1, now), 9007199254740991)
  token = last
  redis.pcall('PUBLISH', channel, 'a' .. id)
end
if changed or kind == 1 then save() end
announce()
return token
