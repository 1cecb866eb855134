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
call('EXISTS', places, order, expiry, barred)
local count, front, far = 0, NEVER, 0
local record, changed, wakes = false, false, nil

local function parse(text)
  local w, s, e, channel = string.match(text, '^(%d+) (%d+) (%d+) (%S+) ')
  return tonumber(w), tonumber(s), tonumber(e), channel
end

local function place(w, s, e, tail)
  return string.format('%.0f %.0f %.0f ', w, s, e) .. tail
end

-- Until the keys may go, in the milliseconds that PEXPIRE wants (0 would delete them): a while
-- after every lease, and after the clock has passed the last token, so that tokens go on rising.
local function life()
  return math.max(1, math.ceil((math.max(now, far, last) + idle - now) / 1000))
end

local function write(ticket, text, s, e)
  call('HSET', places, ticket, text)
  call('ZADD', order, s, ticket)
  call('ZADD', expiry, e, ticket)
  local ms = life()
  call('PEXPIRE', places, ms)
  call('PEXPIRE', order, ms)
  call('PEXPIRE', expiry, ms)
end

-- Sorts the places anew, if somebody (or an eviction) has removed what sorts them.
local function check(index)
  if call('ZCARD', index) == count then return end
  call('DEL', order, expiry)
  local all = call('HGETALL', places)
  for i = 1, #all, 2 do
    local _, s, e = parse(all[i + 1])
    call('ZADD', order, s, all[i])
    call('ZADD', expiry, e, all[i])
  end
  local ms = life()
  call('PEXPIRE', order, ms)
  call('PEXPIRE', expiry, ms)
end

-- Moves the front past everybody who fits now, and tells them; the asker learns by the answer.
local function advance(asker)
  if front ~= NEVER then check(order) end
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
      table.insert(wakes[channel], next)
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
  if count == 0 then due, far = NEVER, 0 end
end

-- Removes all that has lapsed, before it lets anybody in: whoever lapsed as well is not told.
local function lapse()
  if now < due then return end
  changed = true
  check(expiry)
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
    packed = struct.pack('<Bddddddd', 1, last, bar, 0, 0, 0, 0, 0)
  else
    packed = struct.pack('<Bdddddddd', 2, last, bar, capacity, held, count, front, due, far)
  end
  call('SET', line, packed, 'PX', life())
end

-- Tells each process which of its tickets were admitted. If that is not allowed, they look by
-- themselves.
local function announce()
  if not wakes then return end
  for channel, ids in pairs(wakes) do
    redis.pcall('PUBLISH', channel, 'w' .. table.concat(ids))
  end
end

if kind == 2 then
  local _
  _, last, bar, capacity, held, count, front, due, far = struct.unpack('<Bdddddddd', head)
  if call('HLEN', places) ~= count then -- somebody has removed them: nobody stands here any more
    call('DEL', places, order, expiry)
    held, count, front, due, far, changed = 0, 0, NEVER, NEVER, 0, true
  end
  record = call('HGET', places, id)
else
  call('DEL', places, order, expiry)
  if now < expires then
    local only = string.sub(head, 58, 89)
    count, far = 1, expires
    local text = place(held, seq, expires, string.sub(head, 90))
    write(only, text, seq, expires)
    if only == id then record = text end
  else
    held, due = 0, NEVER
  end
end
lapse()
