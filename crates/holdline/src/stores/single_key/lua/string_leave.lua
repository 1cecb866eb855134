-- Deletes a lock that is a string, if its owner is ARGV[1], and wakes waiters of other libraries: by
-- an element of the list ARGV[2], which stays for a second, and by a message to the channel ARGV[3];
-- neither if it is empty. The owner is the first 32 characters, which a note follows, or, if ARGV[1]
-- is not of that length, all of it. For an eviction, ARGV[4] is the key of the evictions, ARGV[5] the
-- ticket's digits, and ARGV[6] the note about it. Returns 0 if there was nothing to delete, -1 if
-- waiters could not be woken, and otherwise 1.
local value = redis.call('GET', KEYS[1])
if not value then return 0 end
local owner = #ARGV[1] == 32 and string.sub(value, 1, 32) or value
if owner ~= ARGV[1] then return 0 end
local done = redis.call('DEL', KEYS[1])
local function fails(...)
  local answer = redis.pcall(...)
  return type(answer) == 'table' and answer.err
end
if ARGV[2] ~= '' then
  -- The first fails if the key is no list, but a lock.
  if fails('LPUSH', ARGV[2], 1) or fails('DEL', ARGV[2]) or fails('LPUSH', ARGV[2], 1)
    or fails('PEXPIRE', ARGV[2], 1000) then
    done = -1
  end
end
if ARGV[3] ~= '' and fails('PUBLISH', ARGV[3], KEYS[1]) then done = -1 end
if ARGV[4] then evicted(ARGV[4], ARGV[5], ARGV[6]) end
return done
