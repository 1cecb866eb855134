-- The numbers of the lines that have a live place. KEYS: the lines; in a cluster one.
local time = redis.call('TIME')
local now = time[1] * 1000000 + time[2]

-- What another program keeps under such a key is no line, and must not fail the others' answers.
local function is_busy(line)
  local head = redis.pcall('GET', line)
  if type(head) == 'table' then
    return not string.find(head.err, 'WRONGTYPE', 1, true) and head
  end
  if not head or string.byte(head) == 45 then return false end -- idle: see enter_one.lua
  if string.byte(head) == 1 then
    if #head < 65 then return false end
    local _, _, _, _, _, _, expires = struct.unpack('<Bddddddd', head)
    return now < expires
  end
  if string.byte(head) == 3 then -- a few: see queue.lua
    local at = 74
    while at + 27 <= #head do
      local _, _, expires, size = struct.unpack('<dddI4', head, at)
      if now < expires then return true end
      at = at + 28 + size
    end
    return false
  end
  redis.call('EXISTS', line, line .. ':e') -- see queue.lua
  local latest = redis.call('ZRANGE', line .. ':e', -1, -1, 'WITHSCORES')[2]
  return latest and tonumber(latest) > now
end

local found = {}
for n, line in ipairs(KEYS) do
  local busy = is_busy(line)
  if type(busy) == 'table' then return busy end -- an error
  if busy then found[#found + 1] = n end
end
return found
