-- The key of the clock, PREFIXclock: a time that the server's clock had reached. Tokens of lines
-- without a key go on from there if the clock was set back. No token that the clock gave is higher
-- by more than `span`, because the first of a line in each span (0: none) calls this; unless the line
-- had a number of that span before it began, which a quorum asks for.
local MOST = 9007199254740991

-- Brings the key up to date. Returns the time that it had, or 0.
local function reached(line, span)
  local clock = string.match(line, '^[^{]*') .. 'clock'
  local kept = redis.pcall('GET', clock)
  local time = kept and (tonumber(kept) or now) or 0 -- what is no time belongs to others
  if time + span > MOST then time = now end -- nor is that
  if time < now - now % span and now + span < MOST then redis.pcall('SET', clock, now) end
  return time
end
