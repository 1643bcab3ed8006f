-- end_asked.lua - end.lua for drop.lua: on the node to which the slot is being moved. The record may still be on the old
-- one, and must not be written here then: the move would fail, or overwrite it.
-- include parts/finish.lua
-- include parts/stay.lua
local done = more[3] and finish(function() error('TRYAGAIN the run record is on another node, or was deleted', 0) end)
if done then return done end
if more[2] ~= '0' and stay(tonumber(more[2])) then return {1, seen} end
