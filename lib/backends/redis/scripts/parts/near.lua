-- near.lua - call f, which uses keys other than NAME: they may be on another node.
--
-- A cluster moves a slot key by key. While NAME is still here, a call to a key that has moved
-- already, or never existed, fails [redis 7.0.15]. Returns true, or false and this error. Every
-- other error is raised.
local function near(f)
  local ok, e = pcall(f)
  if ok then return true end
  e = type(e) == 'table' and e.err or e
  if not string.find(e, 'non local key', 1, true) then error(e, 0) end
  return false, e
end
