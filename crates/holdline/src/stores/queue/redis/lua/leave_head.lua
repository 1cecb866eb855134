-- The head of a call that leaves one line, or evicts from it: see leave_one.lua.
local call, line, id, rest, reply_order_channel, barred_for =
  redis.call, KEYS[1], ARGV[1], ARGV[2], ARGV[3], ARGV[4]
local time = call('TIME')
local now = time[1] * 1000000 + time[2]
