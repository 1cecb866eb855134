-- Stores an eviction in a string beside the lock: the last 8, for 60 seconds. Each is the ticket's
-- 32 digits, the length of the note in 5 digits, and the note. Called last: if it fails, only the
-- note is missing.
local function evicted(key, ticket, note)
  local kept = redis.pcall('GET', key)
  local each, at = {}, 1
  while type(kept) == 'string' and at < #kept do
    local size = tonumber(string.match(kept, '^%d%d%d%d%d', at + 32)) -- a negative one would never end
    if not size then break end
    table.insert(each, string.sub(kept, at, at + 36 + size))
    at = at + 37 + size
  end
  table.insert(each, ticket .. string.format('%05d', #note) .. note)
  while #each > 8 do table.remove(each, 1) end
  redis.pcall('SET', key, table.concat(each), 'PX', 60000)
end
