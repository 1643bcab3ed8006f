-- try.lua - take the lock if there is room and no waiter comes before us. ARGV and answer: parts/look.lua.
-- include parts/role.lua
-- include parts/lock.lua
-- include parts/look.lua
if open and not grant and status == 'busy' then
  local ends, stop
  if w and w ~= id then ends, stop = offer(id) end
  if ends then
    status = 'claim'
    left = ends - now
  elseif not stop then
    grant = true
    if id ~= '' then w = id end
  end
end
-- include parts/grant.lua
-- include parts/stand.lua
