-- try.lua - take the lock if it is free and no waiter comes before us. ARGV and answer: parts/look.lua.
-- include parts/role.lua
-- include parts/lock.lua
-- include parts/look.lua
if not value and status == 'busy' then
  local claim
  w, claim = offer(id, false)
  if not w or w == id then
    grant = true
  else
    status = 'claim'
    left = claim - now
  end
end
-- include parts/grant.lua
-- include parts/stand.lua
