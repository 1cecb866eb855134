-- Takes, keeps or renews a place, and says how it stands. One round trip.
--
-- KEYS[1] is the line. ARGV: the ticket's id; what it wants, packed; 'channel note'; the key's time
-- to live in ms if this place is the last to lapse. `how` is -1 to try, -2 to queue, else the seq
-- to keep. Answers seq if admitted; {1, seq or 0, time until somebody lapses, or -1} waiting; {2}
-- lost; {3, capacity} the line has another; {4} the weight was raised; {5} no tokens left.
--
-- This first part deals with a line that is empty, or of one place: nearly every line. Such a line
-- is one string: packed numbers, of which the first tells (1 one place, 2 many), then the ticket's
-- id, then 'channel note'. An empty one has a place that has lapsed. Times are the server's, in
-- microseconds; all numbers are doubles, exact to 2^53. The rule is the kernel's line.rs.
local MOST = 9007199254740991
local line, id, call = KEYS[1], ARGV[1], redis.call
local weight, wanted, lease, patience, span, how, idle, floor =
  struct.unpack('<dddddddd', ARGV[2])
-- A renewal must be possible when the server is short of memory. That refuses a script's writes
-- unless an earlier one was harmless; and GETEX, though it only reads, counts as one.
local head = call(how >= 0 and 'GETEX' or 'GET', line)
local time = call('TIME')
local now = time[1] * 1000000 + time[2]
local kind, last, bar, capacity, held, seq, expires, due = 1, 0, 0, 0, 0, 0, 0, 0
if head then
  kind, last, bar, capacity, held, seq, expires, due = struct.unpack('<Bddddddd', head)
end
if kind == 1 and now >= expires then
  if how >= 0 or (now < bar and call('ZSCORE', line .. ':x', id)) then return {2} end
  seq = last < now and now or last + 1
  if seq < floor then seq = floor end
  last = span > 1 and seq + (span - 1) or seq
  if last > MOST then return {5} end
  expires = now + lease
  local life = ARGV[4]
  if last > expires or bar > expires then
    life = math.ceil((math.max(last, bar) + idle - now) / 1000)
  end
  call('SET', line, struct.pack('<Bddddddd', 1, last, bar, wanted, weight, seq, expires, expires) ..
    id .. ARGV[3], 'PX', life)
  return seq
end
if kind == 1 then
  if wanted ~= capacity then return {3, capacity} end
  if now >= due then due = expires end
  if string.sub(head, 58, 89) == id then
    if how >= 0 and seq ~= how then return {2} end
    if weight > held then return {4} end
    if floor > 0 then
      local spent = floor + (math.max(span, 1) - 1)
      if spent > MOST then return {5} end
      last = math.max(last, spent)
    end
    local longest = math.max(last, bar, expires)
    local life = ARGV[4]
    if longest > now + lease then life = math.ceil((longest + idle - now) / 1000) end
    expires = math.max(expires, now + lease)
    call('SET', line, struct.pack('<Bddddddd', 1, last, bar, capacity, weight, seq, expires, due) ..
      id .. ARGV[3], 'PX', life)
    return seq
  end
  if how >= 0 then return {2} end
  if how == -1 and held + weight > capacity then return {1, 0, math.max(0, due - now)} end
end
