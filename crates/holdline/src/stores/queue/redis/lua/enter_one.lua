-- Takes, keeps or renews a place, and returns its standing. One round trip. Its head is
-- enter_head.lua or, in a batch, batch_head.lua.
--
-- line: the line's key. head: its string, or false if there is none. tail: the ticket's id, then
-- 'channel note'. `how` is -1 to try, -2 to queue, else the seq to keep; the other numbers are the
-- ticket's. Returns seq if admitted; {1, seq or 0, time until a place lapses, or -1} waiting; {2}
-- lost; {3, capacity} the line has another; {4} the weight was raised; {5} no tokens left.
--
-- This first part handles a line that is empty or of one place, as nearly every line is. Such a
-- line is one string: packed numbers, of which the first is the kind (1 one place, 2 many, 3 a
-- few), then the tail. An empty line has a place that has lapsed; or it is idle, and the string has
-- only `last`, with a minus sign: such a number takes Redis the least memory. Times are the
-- server's, in microseconds; all numbers are doubles, exact to 2^53. `till` says how long the key
-- is kept; it is kept for `idle` after all of its times or, if that saves a step, for half as long.
-- It is odd if the line was entered again within a second (or by chance, after a handover): it then
-- stays whole when it is left, because it is likely to be entered again, which costs less so. The
-- rule is the kernel's line.rs.
--
-- A line without a key has the clock for its tokens, see clock.lua.
local kind, last, bar, capacity, held, seq, expires, due, till = 1, 0, 0, 0, 0, 0, 0, 0, 0
local minus_last = head and #head < 65 and tonumber(head)
if minus_last and minus_last < 0 then
  last = -minus_last
elseif head then
  kind, last, bar, capacity, held, seq, expires, due, till = struct.unpack('<Bdddddddd', head)
end
local again, same, busy = false, false, till % 2
if kind == 1 then
  if now >= expires then
    local barred_until = now < bar and call('ZSCORE', line .. ':x', string.sub(tail, 1, 32))
    if how >= 0 or (barred_until and now < tonumber(barred_until)) then return {2} end
    busy = head and now - last < 1000000 and 1 or 0
    if span > 0 and last < now - now % span then
      local time = reached(line, span)
      if time > now and last == 0 then last = time + span end
    end
    seq = last < now and now or last + 1
    if seq < min_token then seq = min_token end
    last = token_count > 1 and seq + (token_count - 1) or seq
    if last > MOST then return {5} end
    capacity, expires, again = wanted, now + lease, true
    due = expires
  else
    if wanted ~= capacity then return {3, capacity} end
    if now >= due then due = expires end
    -- Looking for a text costs less than cutting one out: each text that is made is hashed whole.
    same = how >= 0 and #head == 65 + #tail and string.find(head, tail, 66, true) == 66
    if same or string.sub(head, 66, 97) == string.sub(tail, 1, 32) then
      if how >= 0 and seq ~= how then return {2} end
      if weight > held then return {4} end
      same = same and weight == held and min_token == 0
      if min_token > 0 then
        local spent = min_token + (math.max(token_count, 1) - 1)
        if spent > MOST then return {5} end
        last = math.max(last, spent)
      end
      if now + lease > expires then expires = now + lease end
      again = true
    elseif how >= 0 then
      return {2}
    elseif how == -1 and held + weight > capacity then
      return {1, 0, math.max(0, due - now)}
    end
  end
end
if again then
  local enough = expires
  if last > enough then enough = last end
  if bar > enough then enough = bar end
  -- SETRANGE is quicker than SET.
  local over = till >= enough + idle / 2 and #head == 65 + #tail
  if over and same then
    call('SETRANGE', line, '41', struct.pack('<dd', expires, due)) -- all that most renewals change
    return seq
  end
  if not over then till = enough + idle end
  till = till - till % 2 + busy
  local text = struct.pack('<Bdddddddd', 1, last, bar, capacity, weight, seq, expires, due, till)
    .. tail
  if over then
    call('SETRANGE', line, '0', text)
  elseif head then
    call('SET', line, text, 'PX', math.ceil((till - now) / 1000))
  elseif not call('SET', line, text, 'PX', math.ceil((till - now) / 1000), 'NX') then
    call('GET', line) -- fails: it is no string, which a batch does not see before
  end
  return seq
end
local id, words = string.sub(tail, 1, 32), string.sub(tail, 33)
-- A ticket that queues behind others is added to the end of a few places, see queue.lua. The
-- general code does the same, but takes four times as long.
if how == -2 and (kind == 1 or kind == 3) and wanted == capacity and now >= bar and now < due
  and (span == 0 or last >= now - now % span) and not string.find(head, id, 66, true) then
  local count, front, far = 1, math.huge, expires
  if kind == 3 then
    count, front, far = seq, expires, till
    till = struct.unpack('<d', head, 66)
  end
  local s = math.max(last + 1, now, min_token)
  local spent = s + (math.max(token_count, 1) - 1)
  local place = struct.pack('<dddI4', weight, s, now + wait_lease, #tail) .. tail
  local waits = front < math.huge or held + weight > capacity
  if waits and spent <= MOST and count < FEW and #head + #place <= SHORT - 36 then
    front, far = math.min(front, s), math.max(far, now + lease)
    due = math.min(due, now + wait_lease)
    local enough = math.max(far, spent)
    local over = kind == 3 and till >= enough + idle / 2
    if not over then till = enough + idle end
    local numbers = struct.pack('<Bddddddddd', 3, spent, bar, capacity, held, count + 1, front, due,
      far, till)
    if over then
      call('SETRANGE', line, '0', numbers)
      call('SETRANGE', line, #head, place)
    else
      local others = kind == 3 and string.sub(head, 74)
        or struct.pack('<dddI4', held, seq, expires, #head - 65) .. string.sub(head, 66)
      call('SET', line, numbers .. others .. place, 'PX', math.ceil((till - now) / 1000))
    end
    return {1, s, s == front and due - now or -1}
  end
end
