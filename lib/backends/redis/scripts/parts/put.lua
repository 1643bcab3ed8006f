-- put.lua - write the run record, if the lock is ours. last, from its third word on: for how long the record is kept (ms),
-- and its text; with 0 as its begin both times are this server's.
-- A client that skips its run gives the record of the success that it has found elsewhere. That stands in the place of an
-- older one, and of any that says 'running': we hold the lock, so that run has crashed, or has never got the lock. What dlock
-- has not written stays, and so does the end of a newer run.
-- include parts/run_read.lua
local was, state, fence, token, begin = last_run()
local record = string.match(last, '^%S+ %S+ %S+ (.*)$')
local head, new, number, by, since, tail = string.match(record, '^(dlock%-run1 (%l+) %S+ (%d+) (%x+)) (%d+) %d+ (.*)$')
if value == ARGV[3] and was ~= false then
  if since == '0' then
    since = token == by and begin or digits(now)
    record = head .. ' ' .. since .. ' ' .. (new == 'running' and '0' or digits(now)) .. ' ' .. tail
    was = nil -- what is there gives way
  end
  if not was or state == 'running' or tonumber(fence) < tonumber(number) then
    redis.call('SET', once, record, 'PX', more[3])
    token, state = by, new
  end
end
if was ~= false and token == by and state == new then recorded = 1 end
