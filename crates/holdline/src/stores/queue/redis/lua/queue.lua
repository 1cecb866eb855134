-- The functions common to all operations on a line of several places, or one that becomes so. The
-- names, and every step, are those of the kernel's line.rs. Defined above: line, call, id, idle,
-- reply_order_channel, head, now, kind, and the numbers of a line of one place.
--
-- A few places are kept in the line's string, behind its head, in their order (kind 3): a handover
-- is then one read and one write. They are written at the end, by `save`; and as a line of one
-- place when only one is left.
--
-- More places are in keys of their own (kind 2), until the line is empty again, and the string then
-- has only the head. Hash `places` has a field for every ticket: 'weight seq expires channel note'.
-- The indexes are rebuilt from it if they differ: `order` sorts the places by seq, `expiry` by
-- when they lapse. `barred` has the tickets that must not enter any more (see leave.lua), sorted by
-- the end of that. All keys begin with KEYS[1] and share its slot; they are not listed in KEYS,
-- because a cluster that moves a slot refuses commands on keys that do not exist, and most lines
-- have only the one.
if kind ~= 1 and kind ~= 2 and kind ~= 3 then
  return redis.error_reply('HOLDLINE the line is kept by another version of holdline')
end
local NEVER = math.huge
local places, order, expiry, barred = line .. ':p', line .. ':q', line .. ':e', line .. ':x'
-- far: the end of the longest lease; till: until when the keys are kept.
local count, front, far, till = 0, NEVER, 0, 0
local few = kind ~= 2 and {}
local record, changed, wakes = false, false, nil

-- A place is {id, w, s, e, words}: weight, seq, when it lapses, and 'channel note'.
local function parse(ticket, text)
  local w, s, e, words = string.match(text, '^(%d+) (%d+) (%d+) (.*)$')
  return {id = ticket, w = tonumber(w), s = tonumber(s), e = tonumber(e), words = words}
end

local function find(ticket)
  if few then
    for _, place in ipairs(few) do
      if place.id == ticket then return place end
    end
    return false
  end
  local text = call('HGET', places, ticket)
  return text and parse(ticket, text)
end

-- The first place that has this number or a higher one.
local function from(seq)
  if few then
    for _, place in ipairs(few) do
      if place.s >= seq then return place end
    end
    return nil
  end
  local ticket = call('ZRANGEBYSCORE', order, seq, '+inf', 'LIMIT', 0, 1)[1]
  return ticket and find(ticket)
end

local function channel_of(place)
  return string.match(place.words, '^(%S+) ')
end

-- When the keys may expire: `idle` after every lease, and after the clock has passed the last
-- token, so that tokens go on rising.
local function horizon()
  return math.max(now, far, last, bar) + idle
end

-- The time until an instant, in milliseconds; never 0, which would delete a key.
local function life(instant)
  return math.max(1, math.ceil((instant - now) / 1000))
end

-- Extends the expiry of the keys beyond the line's. Most calls need not: there is some slack.
local function outlive()
  local enough = horizon()
  if till >= enough - idle / 2 then return end
  till = enough
  for _, key in ipairs({places, order, expiry}) do call('PEXPIRE', key, life(till)) end
end

-- Stores a place: a new one, which is the last, or one that was changed.
local function write(place, new)
  if few then
    if new then table.insert(few, place) end
    return
  end
  local text = string.format('%.0f %.0f %.0f ', place.w, place.s, place.e) .. place.words
  call('HSET', places, place.id, text)
  if new then call('ZADD', order, place.s, place.id) end
  call('ZADD', expiry, place.e, place.id)
  outlive()
end

-- Counts the places anew and rebuilds the indexes, if a user (or the server, for want of memory) has
-- removed something, or a call failed half way. The new numbers are saved whatever the call does:
-- with the old `till`, later calls would let the keys expire too early.
local function rebuild()
  call('DEL', order, expiry)
  local all, before = call('HGETALL', places), count
  changed = true
  held, count, far, till = 0, 0, 0, 0
  for i = 1, #all, 2 do
    local place = parse(all[i], all[i + 1])
    call('ZADD', order, place.s, place.id)
    call('ZADD', expiry, place.e, place.id)
    count, far = count + 1, math.max(far, place.e)
    if place.s < front then held = held + place.w end
  end
  if count > 0 then outlive() end
  if count ~= before then due = 0 end -- so that `lapse` admits those that fit now
end

-- Moves the front past the places that fit now, and collects their notices; the caller's own place
-- is in its reply.
local function advance(asker)
  while front ~= NEVER do
    local next = from(front)
    -- A number beyond 2^53, which only a changed record has, would be found again for ever.
    if not next or next.s + 1 == next.s then
      front = NEVER
      return
    end
    if held + next.w > capacity then
      front = next.s
      return
    end
    held, front = held + next.w, next.s + 1
    if next.id ~= asker then
      local channel = channel_of(next)
      wakes = wakes or {}
      wakes[channel] = wakes[channel] or {}
      table.insert(wakes[channel], next.id .. struct.pack('<d', next.s))
    end
  end
end

-- Removes a place that is there.
local function remove(place)
  if few then
    for n, one in ipairs(few) do
      if one == place then
        table.remove(few, n)
        break
      end
    end
  else
    call('HDEL', places, place.id)
    call('ZREM', order, place.id)
    call('ZREM', expiry, place.id)
  end
  if place.id == id then record = false end
  changed, count = true, count - 1
  if place.s < front then held = held - place.w end
  if count == 0 then due, far, till = NEVER, 0, 0 end
end

-- A batch of the lapsed places; empty if there are no more.
local function lapsed()
  local some = {}
  if few then
    for _, place in ipairs(few) do
      if place.e <= now then table.insert(some, place) end
    end
    return some
  end
  for _, ticket in ipairs(call('ZRANGEBYSCORE', expiry, '-inf', now, 'LIMIT', 0, 100)) do
    table.insert(some, find(ticket))
  end
  return some
end

-- The earliest time at which a place will lapse.
local function soonest()
  if not few then
    return tonumber(call('ZRANGE', expiry, 0, 0, 'WITHSCORES')[2]) or NEVER
  end
  local first = NEVER
  for _, place in ipairs(few) do first = math.min(first, place.e) end
  return first
end

-- Removes all lapsed places before it admits others, so that no lapsed place is notified.
local function lapse()
  if now < due then return end
  changed = true
  local some = lapsed()
  while #some > 0 do
    for _, place in ipairs(some) do remove(place) end
    some = lapsed()
  end
  advance(id)
  due = soonest()
end

local function numbers(of)
  return struct.pack('<Bddddddddd', of, last, bar, capacity, held, count, front, due, far, till)
end

-- The line as one string: idle, empty, of one place, or of a few; nothing if it is too long for that.
local function together()
  if count == 0 and now >= bar then return -last end
  if count == 0 then
    return struct.pack('<Bdddddddd', 1, last, bar, 0, 0, 0, 0, 0, horizon())
  end
  if not few or count > FEW then return nil end
  local first = few[1]
  if count == 1 then
    return struct.pack('<Bdddddddd', 1, last, bar, capacity, first.w, first.s, first.e, due,
      horizon()) .. first.id .. first.words
  end
  till = horizon()
  local parts = {numbers(3)}
  for n, place in ipairs(few) do
    local tail = place.id .. place.words
    parts[n + 1] = struct.pack('<dddI4', place.w, place.s, place.e, #tail) .. tail
  end
  local text = table.concat(parts)
  return #text <= SHORT and text or nil
end

-- Moves a few places to keys of their own. If a cluster is about to move those, this fails, and
-- nothing has been changed.
local function spread()
  local all = few
  few, till = nil, 0
  if call('EXISTS', places, order, expiry) > 0 then
    call('DEL', places, order, expiry) -- of a line that was removed
  end
  for _, place in ipairs(all) do write(place, true) end
end

-- Writes the line's string.
local function save()
  local text = together()
  if not text then
    if few then spread() end
    text = numbers(2)
  end
  call('SET', line, text, 'PX', life(horizon()))
end

-- Notifies each process of its places that were admitted, by ticket and number. If publishing is
-- not allowed, the waiters poll.
--
-- After the call a server writes its output to the connections in the reverse of the order in which
-- output was first added. The caller's connection, whose reply is added last, would be first, and
-- the caller's next request could delay the rest. A message to the caller's own channel, to which
-- that connection subscribes, puts it at the end: waiters are notified before it.
local function announce()
  if not wakes then return end
  if reply_order_channel ~= '' then
    redis.pcall('PUBLISH', reply_order_channel, '')
    reply_order_channel = ''
  end
  for channel, ids in pairs(wakes) do
    redis.pcall('PUBLISH', channel, 'w' .. table.concat(ids))
  end
end

if kind ~= 1 then
  local _
  _, last, bar, capacity, held, count, front, due, far, till =
    struct.unpack('<Bddddddddd', head)
end
if kind == 3 then
  local at = 74
  for n = 1, count do
    local w, s, e, size = struct.unpack('<dddI4', head, at)
    local words = at + 60 -- behind those four, and the id
    few[n] = {id = string.sub(head, at + 28, words - 1), w = w, s = s, e = e}
    at = at + 28 + size
    few[n].words = string.sub(head, words, at - 1)
  end
elseif kind == 2 then
  if call('HLEN', places) ~= count or call('ZCARD', order) ~= count
    or call('ZCARD', expiry) ~= count then
    -- If a cluster is moving the keys, this fails, and nothing has been changed: a key that is not
    -- here is at the other node, where the other commands would take it for one that is lost.
    call('EXISTS', places, order, expiry)
    rebuild()
  end
elseif now < expires then
  count, far = 1, expires
  few[1] = {id = string.sub(head, 66, 97), w = held, s = seq, e = expires,
    words = string.sub(head, 98)}
else
  held, due = 0, NEVER
end
if count > 0 then record = find(id) end
lapse()
