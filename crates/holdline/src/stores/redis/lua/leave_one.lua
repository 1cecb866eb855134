-- Gives a place up. One round trip. KEYS[1] is the line. ARGV: the ticket's id; the time in ms to
-- keep an idle line; and perhaps for how long to bar the ticket. Answers 1 if there was a place,
-- else 0. This first part deals with a line of one place: see enter_one.lua.
local line, id, call = KEYS[1], ARGV[1], redis.call
local head = call('GETEX', line)
local time = call('TIME')
local now = time[1] * 1000000 + time[2]
local kind, last, bar, capacity, held, seq, expires, due = 1, 0, 0, 0, 0, 0, 0, 0
if head then
  kind, last, bar, capacity, held, seq, expires, due = struct.unpack('<Bddddddd', head)
end
if kind == 1 and not ARGV[3] then
  if now >= expires or string.sub(head, 58, 89) ~= id then return 0 end
  if expires - now > ARGV[2] * 1000 then
    local life = math.ceil((math.max(now, last, bar) - now) / 1000) + ARGV[2]
    call('SET', line, struct.pack('<Bddddddd', 1, last, bar, 0, 0, 0, 0, 0), 'PX', life)
  else
    call('SETRANGE', line, '41', '\0\0\0\0\0\0\0\0') -- `expires`: it has lapsed. Quicker than SET.
  end
  return 1
end
local idle = ARGV[2] * 1000
