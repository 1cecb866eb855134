-- Whether anybody stands in the line. KEYS: line, queue, expiry, barred. ARGV: '' idle
if count == 0 then return 0 end
if now < due then return 1 end
if sole ~= '' then
  local _, _, expires = parse(call('HGET', line, sole))
  return expires > now and 1 or 0
end
local latest = call('ZRANGE', expiry, -1, -1, 'WITHSCORES')[2]
return (latest and tonumber(latest) > now) and 1 or 0
