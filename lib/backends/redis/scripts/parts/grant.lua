-- grant.lua - the second step of try.lua and vote.lua: set NAME and return, if it is granted. NAME comes last: a script
-- that fails half-way (a right is missing) has granted nothing.
if grant then
  -- tostring(1.79e15) would lose digits. The clock keeps the fence growing if the counter is lost.
  local fence = math.max((tonumber(redis.call('GET', prefix .. 'fence')) or 0) + 1, time[1] * 1000000 + time[2])
  fence = string.format('%.0f', fence)
  redis.call('SET', prefix .. 'fence', fence, 'PX', string.format('%.0f', math.max(86400000, 10 * ttl)))
  if id ~= '' then
    drop(id)
    claimed(nil)
  end
  if w == id then watch(string.format(' %.0f ', ttl) .. ARGV[3]) end
  redis.call('SET', name, ARGV[3], 'PX', ARGV[5])
  return {'granted', fence, ttl, 0, '', now, up, longest}
end
