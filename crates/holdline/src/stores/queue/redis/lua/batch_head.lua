-- The head of a batch: operations on several lines, independent of each other, at one time of the
-- clock. Between this and batch.lua are the functions `enter` and `leave`, made of the same parts
-- as the calls for one line.
local call, reply_order_channel = redis.call, ARGV[2]
local time = call('TIME')
local now = time[1] * 1000000 + time[2]
