-- begin.lua - in grant.lua, for clients with --once or --min-hold. more: restart grace, the time within which a success
-- counts (0: no records), the least hold (all ms).
--
-- Where a run has succeeded, or where its record should be is something else, the lock is not taken: the answer is
-- {'skipped', '0', 0, 0, record, ...} or {'record', '0', 0, 0, type, ...}; the client has left, and the next waiter is
-- called. Else its record is written before all else: a server that is out of memory refuses it, and then nothing else
-- was written.
ttl = math.max(ttl, tonumber(more[3]))
if more[2] ~= '0' then
  -- include parts/run.lua
  local text, state, _, _, _, ended = last_run()
  -- A clock that was set back must not let a success be repeated.
  if text == false or (state == 'succeeded' and now - ended < tonumber(more[2])) then
    if value then redis.call('DEL', name) end -- ours already; something has overwritten its record
    value = false
    if id ~= '' then
      drop(id)
      claimed(nil)
    end
    near(function() offer('', true) end)
    return {text and 'skipped' or 'record', '0', 0, 0, text or state, now, up, longest}
  end
  write_run('running', '-1', fence, digits(now), '0', more[2])
end
