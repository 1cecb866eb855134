-- The time, the line as it is stored, lapsed places included, and its evictions. KEYS[1]: the line.
-- A cluster that moves the slot refuses to read a key that does not exist, as `:p` mostly.
local head = redis.call('GET', KEYS[1])
local many = head and string.byte(head) == 2
if many then redis.call('EXISTS', KEYS[1], KEYS[1] .. ':p') end -- see queue.lua
return {redis.call('TIME'), head, many and redis.call('HGETALL', KEYS[1] .. ':p') or {},
  redis.pcall('GET', KEYS[1] .. ':v')}
