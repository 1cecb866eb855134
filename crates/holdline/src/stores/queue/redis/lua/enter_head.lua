-- The head of a call that enters one line: see enter_one.lua.
local call, line, tail, reply_order_channel = redis.call, KEYS[1], ARGV[2], ''
local time = call('TIME')
local now = time[1] * 1000000 + time[2]
local weight, wanted, lease, wait_lease, token_count, idle, min_token, span, how =
  struct.unpack('<ddddddddd', ARGV[1])
-- A renewal must be possible when the server is out of memory. It then refuses a script's writes
-- unless an earlier one needed no memory; GETEX, though it only reads, counts as such a write.
local head = call(how >= 0 and 'GETEX' or 'GET', line)
