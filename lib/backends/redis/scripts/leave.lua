-- leave.lua - end the hold if the lock is ours, leave the queue, call the next waiter.
--
-- ARGV: db, prefix, value, id, the end of the hold (parts/finish.lua) -> was the lock ours (3: yes,
-- but the run record's key holds foreign data; nothing was written, and the lock stays ours), seen
-- (3: the type of the foreign data), now ms
-- include parts/lock.lua
-- include parts/clock.lua
local simple = ARGV[4] == '' and ARGV[5] == '0'
-- include parts/free.lua
-- include parts/near.lua
-- include parts/queue.lua
-- include parts/quit.lua
-- include parts/stay.lua
-- include parts/finish.lua
mine = mine or marked_ours()
local done = finish(ARGV[5], false)
if done then return done end
local lease = least ~= '0' and stay(tonumber(least))
if lease then
  near(function() watch(lease) end) -- the first waiter watches the expiry
  return {1, seen, now}
end
if quit(ARGV[4]) then return {1, seen, now} end
-- Other readers take nothing from a reader.
if kind_of(ARGV[3]) ~= 'x' then return {0, not epoch and seen, now} end
return {0, shown(), now}
