-- Takes, keeps or renews a place, and says how it stands. One round trip.
-- ARGV: id idle weight capacity lease patience span how channel note
-- how is 0 to try, 1 to queue, else the seq to keep.
-- Answers {0, seq} admitted; {1, seq or 0, time until somebody lapses, or -1} waiting; {2} lost;
-- {3, capacity} the line has another; {4} the weight was raised; {5} no tokens left.
local id, weight, wanted = ARGV[1], tonumber(ARGV[3]), tonumber(ARGV[4])
local lease, patience, how = tonumber(ARGV[5]), tonumber(ARGV[6]), tonumber(ARGV[8])

local function place(seq, expires)
  return string.format('%.0f %.0f %.0f ', weight, seq, expires) .. ARGV[9] .. ' ' .. ARGV[10]
end

local function standing(seq)
  if seq < front then return {0, seq} end
  -- Only the first in the line looks again when somebody may have lapsed.
  local first = seq == front and due ~= NEVER
  return {1, seq == NEVER and 0 or seq, first and math.max(0, due - now) or -1}
end

local function fits()
  return front == NEVER and held + weight <= wanted
end

-- Sorts a place that is new, or whose expiry is.
local function sort(seq, expires)
  call('ZADD', expiry, expires, id)
  call('PEXPIRE', expiry, left(horizon()))
  if seq >= front then
    call('ZADD', queue, seq, id)
    call('PEXPIRE', queue, left(horizon()))
  end
end

local function keep()
  local before, seq, expires = parse(record)
  if how > 1 and seq ~= how then return {2} end
  if weight > before then return {4} end
  -- The first write is one that a server short of memory allows, so that renewals go on.
  far = math.max(far, now + lease)
  till = math.max(till, horizon())
  call('PEXPIRE', line, left(till))
  local admitted = seq < front
  expires = math.max(expires, now + (admitted and lease or patience))
  if before > weight then
    call('HSET', line, id, place(seq, expires)) -- the front is moved by what is written
    if admitted then held = held - (before - weight) end
    advance()
    if not admitted and seq < front then expires = math.max(expires, now + lease) end
  end
  if sole == '' then sort(seq, expires) end
  save(id, place(seq, expires))
  return standing(seq)
end

local function join()
  if now < bar and call('ZSCORE', barred, id) then return {2} end
  local seq = math.max(last + 1, now)
  local spent = seq + (math.max(tonumber(ARGV[7]), 1) - 1)
  if spent > MOST then return {5} end
  local admitted = fits()
  local expires = now + (admitted and lease or patience)
  capacity, last, count, changed = wanted, spent, count + 1, true
  due, far = math.min(due, expires), math.max(far, now + lease)
  if admitted then
    held = held + weight
  else
    front, waiting = math.min(front, seq), waiting + 1
  end
  if not read[1] then call('DEL', queue, expiry) end
  if count == 1 then
    sole = id
  else
    if sole ~= '' then
      local _, _, other = parse(call('HGET', line, sole))
      call('ZADD', expiry, other, sole)
      sole = ''
    end
    sort(seq, expires)
  end
  save(id, place(seq, expires))
  return standing(seq)
end

local function enter()
  if count > 0 and capacity ~= wanted then return {3, capacity} end
  if record then return keep() end
  if how > 1 then return {2} end
  if how == 0 and not fits() then return standing(NEVER) end
  return join()
end

expire()
local lapsed = changed
local answer = enter()
if lapsed and answer[1] > 1 or (answer[1] == 1 and answer[2] == 0 and lapsed) then save() end
announce()
return answer
