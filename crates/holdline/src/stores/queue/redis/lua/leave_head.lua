-- The head of a call that leaves one line, or evicts from it: see leave_one.lua.
local call, line, id, reply_order_channel, barred_for =
  redis.call, KEYS[1], ARGV[1], ARGV[3], ARGV[4]
local time = call('TIME')
local now = time[1] * 1000000 + time[2]
local idle = ARGV[2] * 1000
local head = call('GETEX', line) -- see enter_head.lua
