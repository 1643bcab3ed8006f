-- put.lua - write the run record of a Redlock server, if the lock is ours. kept: for how long (ms).
-- With 0 as the record's begin both times are this server's. Returns 1 if the record is there now,
-- else 0.
--
-- A client that skips its run brings the record of the success from another server. This record
-- replaces an older record, and any 'running': we hold the lock, so the other run has crashed, or
-- has never got the lock. Foreign data stays, and so does the end of a newer run.
local function put(kept, record)
  -- include parts/run_read.lua
  local was, state, fence, token, begin = last_run()
  local head, new, number, by, since, tail =
    string.match(record, '^(dlock%-run1 (%l+) %S+ (%d+) (%x+)) (%d+) %d+ (.*)$')
  if value == ARGV[3] and was ~= false then
    if since == '0' then
      since = token == by and begin or digits(now)
      local ended = new == 'running' and '0' or digits(now)
      record = head .. ' ' .. since .. ' ' .. ended .. ' ' .. tail
      was = nil -- what is there gives way
    end
    if not was or state == 'running' or tonumber(fence) < tonumber(number) then
      redis.call('SET', once, record, 'PX', kept)
      token, state = by, new
    end
  end
  return was ~= false and token == by and state == new and 1 or 0
end
