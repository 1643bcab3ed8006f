-- free.lua - end the exclusive hold, if it is ours: mine. simple: id is '', and the hold has no
-- conditions.
--
-- Where no client waits, this is all, and the answer is given before the functions of the queue are
-- made, which takes the server as long as the release. line: the first waiters, if they were asked
-- for.
local mine, line = value == ARGV[3]
if mine and simple then
  redis.call('DEL', name)
  value = false
  line = redis.pcall('ZRANGE', prefix .. 'queue', 0, 1, 'WITHSCORES')
  if line.err then line = nil
  elseif not line[1] then return {1, seen, now} end
end
