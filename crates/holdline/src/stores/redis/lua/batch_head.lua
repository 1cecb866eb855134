-- The head of a call that deals with many lines, each by itself, at one moment: it saves the server
-- most of what a call costs. Between this and batch.lua stand the functions `enter` and `leave`,
-- made of the same parts as the calls for one line.
local call, reply_order_channel = redis.call, ARGV[2]
local time = call('TIME')
local now = time[1] * 1000000 + time[2]
