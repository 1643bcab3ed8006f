-- shown.lua - what the client is shown of the holders: the value of one that shares the lock, else NAME's.
local function shown()
  if not epoch then return seen end
  local all = redis.pcall('ZREVRANGEBYSCORE', prefix .. 'holders:' .. epoch, '(8.5e15', '-inf', 'LIMIT', 0, 1) -- FREE
  return all[1] and string.sub(all[1], 1, SHOWN) or seen
end
