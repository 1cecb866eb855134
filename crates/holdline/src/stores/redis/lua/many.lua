-- What is common to everything that is done to a line of many places, and to one that becomes so.
-- The names, and every step, are those of the kernel's line.rs. Above were defined: line, call, id,
-- idle, head, now, kind, and the numbers of a line of one place.
--
-- The line's string then has only the head. Hash `places` has a field for every ticket: 'weight seq
-- expires channel note'. All else follows from it, and is made anew if it is lost: `order` sorts
-- them by seq, `expiry` by when they lapse. `barred` sorts, by when to forget them, the tickets
-- that must not enter any more (see leave.lua). All keys begin with KEYS[1] and share its slot;
-- they are not listed in KEYS, because a cluster that moves a slot refuses commands on keys that do
-- not exist, and most lines have only the one.
if kind ~= 1 and kind ~= 2 then
  return redis.error_reply('HOLDLINE the line is kept by another version of holdline')
end
local NEVER = math.huge
local places, order, expiry, barred = line .. ':p', line .. ':q', line .. ':e', line .. ':x'
-- If a cluster is about to move the keys, this fails, and nothing has been changed.
local there = call('EXISTS', places, order, expiry)
-- far: nobody's lease is longer; till: until when the keys are kept.
local count, front, far, till = 0, NEVER, 0, 0
local record, changed, wakes = false, false, nil

local function parse(text)
  local w, s, e, channel = string.match(text, '^(%d+) (%d+) (%d+) (%S+) ')
  return tonumber(w), tonumber(s), tonumber(e), channel
end

local function place(w, s, e, tail)
  return string.format('%.0f %.0f %.0f ', w, s, e) .. tail
end

-- When the keys may go: a while after every lease, and after the clock has passed the last token,
-- so that tokens go on rising.
local function horizon()
  return math.max(now, far, last, bar) + idle
end

-- Until then, in milliseconds; it must never be 0, which would delete a key.
local function life(instant)
  return math.max(1, math.ceil((instant - now) / 1000))
end

-- Makes the keys outlive the line. Most calls need not: there is some time to spare.
local function outlive()
  local enough = horizon()
  if till >= enough - idle / 2 then return end
  till = enough
  for _, key in ipairs({places, order, expiry}) do call('PEXPIRE', key, life(till)) end
end

local function write(ticket, text, s, e)
  call('HSET', places, ticket, text)
  if s then call('ZADD', order, s, ticket) end
  call('ZADD', expiry, e, ticket)
  outlive()
end

-- Sorts the places anew, if somebody (or an eviction) has removed what sorts them.
local function rebuild()
  call('DEL', order, expiry)
  local all = call('HGETALL', places)
  for i = 1, #all, 2 do
    local _, s, e = parse(all[i + 1])
    call('ZADD', order, s, all[i])
    call('ZADD', expiry, e, all[i])
  end
  till = 0
  outlive()
end

-- Moves the front past everybody who fits now, and tells them; the asker learns by the answer.
local function advance(asker)
  while front ~= NEVER do
    local next = call('ZRANGEBYSCORE', order, front, '+inf', 'LIMIT', 0, 1)[1]
    if not next then
      front = NEVER
      return
    end
    local w, s, _, channel = parse(call('HGET', places, next))
    if held + w > capacity then
      front = s
      return
    end
    held, front = held + w, s + 1
    if next ~= asker then
      wakes = wakes or {}
      wakes[channel] = wakes[channel] or {}
      table.insert(wakes[channel], next .. string.format('%016.0f', s))
    end
  end
end

-- Removes a place that is there.
local function remove(ticket, w, s)
  call('HDEL', places, ticket)
  call('ZREM', order, ticket)
  call('ZREM', expiry, ticket)
  if ticket == id then record = false end
  changed, count = true, count - 1
  if s < front then held = held - w end
  if count == 0 then due, far, till = NEVER, 0, 0 end
end

-- Removes all that has lapsed, before it lets anybody in: whoever lapsed as well is not told.
local function lapse()
  if now < due then return end
  changed = true
  while true do
    local lapsed = call('ZRANGEBYSCORE', expiry, '-inf', now, 'LIMIT', 0, 100)
    if #lapsed == 0 then break end
    for _, ticket in ipairs(lapsed) do
      local w, s = parse(call('HGET', places, ticket))
      remove(ticket, w, s)
    end
  end
  advance(id)
  due = tonumber(call('ZRANGE', expiry, 0, 0, 'WITHSCORES')[2]) or NEVER
end

-- Writes the head: as that of an empty line, if nobody is left.
local function save()
  local packed
  if count == 0 then
    packed = struct.pack('<Bdddddddd', 1, last, bar, 0, 0, 0, 0, 0, horizon())
  else
    packed = struct.pack('<Bddddddddd', 2, last, bar, capacity, held, count, front, due, far,
      till)
  end
  call('SET', line, packed, 'PX', life(horizon()))
end

-- Tells each process which of its places were admitted, by ticket and number. If that is not allowed, they look by
-- themselves.
local function announce()
  if not wakes then return end
  for channel, ids in pairs(wakes) do
    redis.pcall('PUBLISH', channel, 'w' .. table.concat(ids))
  end
end

if kind == 2 then
  local _
  _, last, bar, capacity, held, count, front, due, far, till =
    struct.unpack('<Bddddddddd', head)
  if there < 3 and call('HLEN', places) == count then
    rebuild()
  elseif there < 3 then -- somebody has removed the places: nobody stands here any more
    call('DEL', places, order, expiry)
    held, count, front, due, far, changed = 0, 0, NEVER, NEVER, 0, true
  end
  record = call('HGET', places, id)
else
  if there > 0 then call('DEL', places, order, expiry) end -- of a line that was removed
  if now < expires then
    local only = string.sub(head, 66, 97)
    count, far = 1, expires
    local text = place(held, seq, expires, string.sub(head, 98))
    write(only, text, seq, expires)
    if only == id then record = text end
  else
    held, due = 0, NEVER
  end
end
lapse()
