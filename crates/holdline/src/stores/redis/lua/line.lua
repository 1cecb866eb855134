-- One line, and what is common to everything that is done to it. The rule is that of the kernel's
-- line.rs, step by step; the names are the same.
--
-- KEYS[1], a hash, is the line: field 'h' is its head, and a field for every ticket is that ticket's
-- place: 'weight seq expires channel note'. All else can be derived from it, and is rebuilt if lost:
-- KEYS[2] sorts the places that wait by seq, KEYS[3] sorts places by expiry. A line of one place,
-- which is nearly every line, has neither: its head says whose the sole place is.
-- KEYS[4] sorts, by the time to forget them, tickets that must not enter any more (see leave.lua).
-- Times are the server's, in microseconds; numbers are doubles, exact to 2^53.
local call, NEVER, MOST = redis.call, math.huge, 9007199254740991
local line, queue, expiry, barred = KEYS[1], KEYS[2], KEYS[3], KEYS[4]
local time = call('TIME')
local now = time[1] * 1000000 + time[2]
local read = call('HMGET', line, 'h', ARGV[1])
local record, idle = read[2], tonumber(ARGV[2])
local version, capacity, last, count, held, front, due, waiting, far, till, bar, at
local sole, changed, wakes = '', false, nil

-- far: nobody's lease is longer; till: when the key expires; bar: until when tickets are barred.
if read[1] then
  version, capacity, last, count, held, front, due, waiting, far, till, bar, at =
    struct.unpack('<Bdddddddddd', read[1])
  if version ~= 1 then
    return redis.error_reply('HOLDLINE the line is kept by another version of holdline')
  end
  sole = string.sub(read[1], at)
else
  capacity, last, count, held, front, due, waiting, far, till, bar =
    0, 0, 0, 0, NEVER, NEVER, 0, 0, 0, 0
end

local function parse(text)
  local weight, seq, expires, channel = string.match(text, '^(%d+) (%d+) (%d+) (%S+) ')
  return tonumber(weight), tonumber(seq), tonumber(expires), channel
end

-- When the keys may expire: a while after every lease, and after the clock has passed the last
-- token, so that tokens go on rising.
local function horizon()
  return math.max(now, far, last) + idle
end

-- Until then, in the milliseconds that PEXPIRE wants; it must never get 0, which deletes.
local function left(instant)
  return math.max(1, math.ceil((instant - now) / 1000))
end

-- Sorts the places anew, if somebody (or an eviction) has removed what sorts them.
local function rebuild()
  call('DEL', queue, expiry)
  sole, waiting = '', 0
  local all = call('HGETALL', line)
  for i = 1, #all, 2 do
    if all[i] ~= 'h' then
      local _, seq, expires = parse(all[i + 1])
      call('ZADD', expiry, expires, all[i])
      if seq >= front then
        call('ZADD', queue, seq, all[i])
        waiting = waiting + 1
      end
    end
  end
  call('PEXPIRE', queue, left(horizon()))
  call('PEXPIRE', expiry, left(horizon()))
end

local function wake(id, channel)
  wakes = wakes or {}
  local ids = wakes[channel] or {}
  wakes[channel] = ids
  ids[#ids + 1] = id
end

-- Moves the front past everybody who fits now.
local function advance()
  if front ~= NEVER and call('ZCARD', queue) ~= waiting then rebuild() end
  while front ~= NEVER do
    local id = call('ZRANGE', queue, 0, 0)[1]
    if not id then
      front = NEVER
      return
    end
    local weight, seq, _, channel = parse(call('HGET', line, id))
    if held + weight > capacity then
      front = seq
      return
    end
    call('ZREM', queue, id)
    held, waiting, front = held + weight, waiting - 1, seq + 1
    wake(id, channel)
  end
end

-- Removes a place that is there, and lets in whom that admits. The first write is one that a server
-- short of memory allows; then it allows the others too.
local function depart(id, weight, seq)
  call('HDEL', line, id)
  if sole == '' then call('ZREM', expiry, id) end
  if id == ARGV[1] then record = false end
  sole, changed, count = '', true, count - 1
  if seq < front then
    held = held - weight
  else
    call('ZREM', queue, id)
    waiting = waiting - 1
  end
  if count == 0 then due, far = NEVER, 0 end
  advance()
end

-- Removes whatever has lapsed.
local function expire()
  if now < due then return end
  changed = true
  if sole ~= '' then
    local weight, seq, expires = parse(call('HGET', line, sole))
    due = expires
    if expires <= now then depart(sole, weight, seq) end
    return
  end
  if call('ZCARD', expiry) ~= count then rebuild() end
  while true do
    local ids = call('ZRANGEBYSCORE', expiry, '-inf', now, 'LIMIT', 0, 100)
    if #ids == 0 then break end
    for _, id in ipairs(ids) do
      local weight, seq = parse(call('HGET', line, id))
      depart(id, weight, seq)
    end
  end
  due = tonumber(call('ZRANGE', expiry, 0, 0, 'WITHSCORES')[2]) or NEVER
end

-- Writes the head, with a place if there is one to be written; makes the key outlive the line.
-- Most calls need not move the key's expiry: it has some time to spare.
local function save(id, text)
  local due_by = horizon()
  local move = till < due_by - idle / 2 or (count == 0 and till > due_by + idle)
  if move then till = due_by end
  local head = struct.pack('<Bdddddddddd', 1, capacity, last, count, held, front, due, waiting,
    far, till, bar) .. sole
  if id then call('HSET', line, 'h', head, id, text) else call('HSET', line, 'h', head) end
  if move then call('PEXPIRE', line, left(till)) end
end

-- Tells each process which of its tickets were admitted.
local function announce()
  if not wakes then return end
  for channel, ids in pairs(wakes) do
    redis.pcall('PUBLISH', channel, 'w' .. table.concat(ids))
  end
end
