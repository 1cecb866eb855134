-- The limits of the few places that are kept in a line's string: places, and bytes. See queue.lua.
local FEW, SHORT = 8, 4096
