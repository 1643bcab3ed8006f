-- alone.lua - holders.lua for the scripts of exclusive clients: they admit no shared holder, so they need little of it,
-- and are half as long. A release stays in the same 16 KiB as the try in front of it, which Redis reads at once.
-- include parts/clock.lua
local epoch = value and string.match(value, '^dlock:shared:(%x+)$')
local holds, ours, admit, extend, give_up -- not called

local function kind_of() return 'x' end
local function digits(n) return string.format('%.0f', n) end

-- A waiter that could share the lock with its holders is told that it is the first, and tries.
local function room() return not value end

-- include parts/shown.lua
