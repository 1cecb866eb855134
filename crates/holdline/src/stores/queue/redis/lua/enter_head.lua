-- The head of a call that enters one line: see enter_one.lua.
local call, line, wants, tail, reply_order_channel = redis.call, KEYS[1], ARGV[1], ARGV[2], ''
local time = call('TIME')
local now = time[1] * 1000000 + time[2]
