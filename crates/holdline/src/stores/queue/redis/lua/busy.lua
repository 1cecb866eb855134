-- Whether the line has any live place. KEYS[1]: the line.
local head = redis.call('GET', KEYS[1])
if not head or string.byte(head) == 45 then return 0 end -- idle: see enter_one.lua
local time = redis.call('TIME')
local now = time[1] * 1000000 + time[2]
if string.byte(head) == 1 then
  local _, _, _, _, _, _, expires = struct.unpack('<Bddddddd', head)
  return now < expires and 1 or 0
end
if string.byte(head) == 3 then -- a few: see queue.lua
  local at = 74
  while at < #head do
    local _, _, expires, size = struct.unpack('<dddI4', head, at)
    if now < expires then return 1 end
    at = at + 28 + size
  end
  return 0
end
redis.call('EXISTS', KEYS[1], KEYS[1] .. ':e') -- see queue.lua
local latest = redis.call('ZRANGE', KEYS[1] .. ':e', -1, -1, 'WITHSCORES')[2]
return latest and tonumber(latest) > now and 1 or 0
