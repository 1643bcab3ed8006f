-- unvote.lua - take back the vote of a Redlock server: as leave.lua.
--
-- ARGV: db, prefix, value, id, and in one word: restart grace ms, the rest of the least hold (ms,
-- 0: the lock is freed), and with --once the record of the run (parts/put.lua) -> as keep.lua
-- include parts/lock.lua
-- include parts/clock.lua
local grace, least, kept, record = string.match(ARGV[5], '^(%d+) (%d+) ?(%d*) ?(.*)$')
local simple = ARGV[4] == '' and least == '0' and kept == ''
-- include parts/free.lua
-- include parts/near.lua
-- include parts/young.lua
-- include parts/queue.lua
-- include parts/quit.lua
-- include parts/stay.lua
-- include parts/put.lua
mine = mine or marked_ours()
local recorded
if kept ~= '' then
  -- A server that is out of memory refuses a first write that may need some: begin with PEXPIRE.
  if value == ARGV[3] then redis.call('PEXPIRE', name, math.max(1, redis.call('PTTL', name))) end
  recorded = put(kept, record)
end
local lease = least ~= '0' and stay(tonumber(least))
if lease then
  near(function() watch(lease) end) -- the first waiter watches the expiry
  return {1, seen, now, recorded}
end
if quit(ARGV[4]) then return {1, seen, now, recorded} end
-- Other readers take nothing from a reader.
if kind_of(ARGV[3]) ~= 'x' then seen = not epoch and seen
else seen = shown() end
return {not seen and young(tonumber(grace)) and 2 or 0, seen, now, recorded}
