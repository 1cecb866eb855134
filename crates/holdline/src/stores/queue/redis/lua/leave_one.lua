-- Removes a place. One round trip. Its head is leave_head.lua or, in a batch, batch_head.lua.
--
-- line: the line's key. head: its string, or false if there is none. id: the ticket's. idle: the
-- time to keep an idle line. barred_for: if given, how long to bar the ticket.
-- reply_order_channel: a channel of the caller's, or empty: see queue.lua. Returns 1 if there was a
-- place, else 0. This first part handles a line of one place, see enter_one.lua; and the first of a
-- few, see queue.lua, when that admits the second and no other: the handover of a mutex. The
-- general code does the same, but takes three times as long, and a waiter waits for it.
local single = head and not barred_for and string.byte(head) == 1
if single and string.find(head, id, 66, true) == 66 then -- quicker than cutting it out
  local seq, expires, _, till = struct.unpack('<dddd', head, 34)
  if till % 2 == 1 and now < expires and expires - now <= idle and now - seq < 1000000 then
    call('SETRANGE', line, '41', '\0\0\0\0\0\0\0\0') -- `expires`: it has lapsed. Quicker than SET.
    return 1
  end
end
local kind, last, bar, capacity, held, seq, expires, due, till = 1, 0, 0, 0, 0, 0, 0, 0, 0
local minus_last = head and #head < 65 and tonumber(head)
if minus_last and minus_last < 0 then
  last = -minus_last
elseif head then
  kind, last, bar, capacity, held, seq, expires, due, till = struct.unpack('<Bdddddddd', head)
end
if kind == 1 and not barred_for then
  if now >= expires or string.sub(head, 66, 97) ~= id then return 0 end
  local early = expires - now > idle
  if early then till = math.max(now, last, bar) + idle end
  local text = now < bar and struct.pack('<Bdddddddd', 1, last, bar, 0, 0, 0, 0, 0, till) or -last
  if early then
    call('SET', line, text, 'PX', math.ceil((till - now) / 1000))
  else
    call('SET', line, text, 'KEEPTTL') -- quicker
  end
  return 1
end
if kind == 3 and not barred_for and string.sub(head, 102, 133) == id then
  local count, front, far = seq, expires, till
  local weight, _, size
  till, weight, _, _, size = struct.unpack('<ddddI4', head, 66)
  local second = 102 + size
  local w, s, e, rest_of_it = struct.unpack('<dddI4', head, second)
  local third = second + 28 + rest_of_it
  local w3, s3 = math.huge, nil
  if count > 2 then w3, s3 = struct.unpack('<dd', head, third) end
  held = held - weight + w
  if now < due and s == front and held <= capacity and held + w3 > capacity then
    local text
    local enough = math.max(now, far, last, bar)
    local over = till >= enough + idle / 2 -- keeping the present expiry is quicker
    if not over then till = enough + idle end
    if count > 2 then
      text = struct.pack('<Bddddddddd', 3, last, bar, capacity, held, count - 1, s3, due, far, till)
        .. string.sub(head, second)
    else
      text = struct.pack('<Bdddddddd', 1, last, bar, capacity, w, s, e, due, till)
        .. string.sub(head, second + 28)
    end
    if over then
      call('SET', line, text, 'KEEPTTL')
    else
      call('SET', line, text, 'PX', math.ceil((till - now) / 1000))
    end
    local words = second + 60
    local channel = string.sub(head, words, string.find(head, ' ', words, true) - 1)
    if reply_order_channel ~= '' then
      redis.pcall('PUBLISH', reply_order_channel, '')
      reply_order_channel = ''
    end
    redis.pcall('PUBLISH', channel, 'w' .. string.sub(head, second + 28, words - 1)
      .. string.sub(head, second + 8, second + 15))
    return 1
  end
end
