-- try.lua - take the lock if it is free and no waiter comes before us. ARGV and answer: parts/look.lua.
-- include parts/role.lua
-- include parts/lock.lua
-- include parts/look.lua
if not value and status == 'busy' then
  local ends = w and w ~= id and offer(id, false)
  if ends then
    status = 'claim'
    left = ends - now
  else
    grant = true
    if id ~= '' then w = id end
  end
end
-- include parts/grant.lua
-- include parts/stand.lua
