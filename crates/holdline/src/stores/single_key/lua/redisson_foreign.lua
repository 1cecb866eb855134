-- The error for a hash that is not Redisson's RLock; nil if it is one. Fields and values alternate.
local function foreign(fields)
  for n = 1, #fields, 2 do
    local field, value = fields[n], fields[n + 1]
    if field == 'mode' then
      if value ~= 'holdline' then return 'FOREIGN Redisson\'s read-write lock' end
    elseif not string.find(field, '^%x+%-%x+%-%x+%-%x+%-%x+:%-?%d+$') then
      return 'FOREIGN a hash that is no lock of Redisson\'s'
    end
  end
end
