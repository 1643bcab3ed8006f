-- free.lua - end the exclusive hold, if the lock is ours: mine. simple: id is '', and the hold has
-- no conditions: without waiters the answer is given before the functions of the queue are made,
-- which takes the server as long as the release. line: the first waiter, if asked for.
local mine, line = value == ARGV[3]
if mine and simple then
  -- With what is left of earlier claims: one command. A cluster that is moving the slot refuses two
  -- keys; then the claims expire.
  local gone = redis.pcall('DEL', name, prefix .. 'claim')
  if type(gone) == 'table' then redis.call('DEL', name) end
  value = false
  line = redis.pcall('ZRANGE', prefix .. 'queue', '0', '0', 'WITHSCORES')
  if line.err then line = nil
  elseif not line[1] then return {1, seen, now} end
end
