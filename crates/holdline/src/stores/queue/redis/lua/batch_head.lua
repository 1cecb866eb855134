-- The head of a batch: operations on several lines, independent of each other, at one time of the
-- clock. Between this and batch.lua are the functions `enter` and `leave`, made of the same parts
-- as the calls for one line. The numbers of the tickets are those of the last `w`.
local call, pcall, KEYS, ARGV = redis.call, pcall, KEYS, ARGV
local struct, string, math = struct, string, math -- found quicker
local letters, reply_order_channel, idle = ARGV[1], ARGV[2], ARGV[3] * 1000
local time = call('TIME')
local now = time[1] * 1000000 + time[2]
local weight, wanted, lease, wait_lease, token_count, min_token, span, _
