-- Gives a place up. One round trip. Its head is leave_head.lua or, when many lines are dealt with in
-- one call, together.lua.
--
-- line: the line's key. id: the ticket's. rest: the time in ms to keep an idle line. barred_for: if
-- given, for how long to bar the ticket. Answers 1 if there was a place, else 0. This first part
-- deals with a line of one place: see enter_one.lua.
local head = call('GETEX', line)
local idle = rest * 1000
local kind, last, bar, capacity, held, seq, expires, due, till = 1, 0, 0, 0, 0, 0, 0, 0, 0
if head then
  kind, last, bar, capacity, held, seq, expires, due, till = struct.unpack('<Bdddddddd', head)
end
if kind == 1 and not barred_for then
  if now >= expires or string.sub(head, 66, 97) ~= id then return 0 end
  if expires - now > idle then
    till = math.max(now, last, bar) + idle
    call('SET', line, struct.pack('<Bdddddddd', 1, last, bar, 0, 0, 0, 0, 0, till), 'PX',
      math.ceil((till - now) / 1000))
  else
    call('SETRANGE', line, '41', '\0\0\0\0\0\0\0\0') -- `expires`: it has lapsed. Quicker than SET.
  end
  return 1
end
