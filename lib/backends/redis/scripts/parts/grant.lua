-- grant.lua - the second step of try.lua and vote.lua: set NAME. The grant comes last: a script
-- that fails half-way (a right is missing) has granted nothing.
--
-- begin: called with the fencing token before the first write; a result is the answer, and nothing
-- is granted. A second result: the record of a success in the future, for a warning.
local function give(begin)
  -- tostring(1.79e15) would lose digits. The clock keeps the fence growing if the counter is lost.
  -- Shared holders and slots get the last exclusive holder's fence; the next exclusive fence is
  -- greater.
  local fence, clock = tonumber(redis.call('GET', prefix .. 'fence')), time[1] * 1000000 + time[2]
  fence = digits(kind ~= 'x' and (fence or clock) or math.max((fence or 0) + 1, clock))
  local refused, ahead
  if begin then refused, ahead = begin(fence) end
  if refused then return refused end
  local kept_ms = string.format('%.0f', math.max(86400000, 10 * ttl))
  redis.call('SET', prefix .. 'fence', fence, 'PX', kept_ms)
  if id ~= '' then
    drop(id)
    claimed(nil)
  end
  local number
  if kind == 'x' then
    if w == id then watch(string.format(' %.0f ', ttl) .. ARGV[3]) end
    redis.call('SET', name, ARGV[3], 'PX', ttl)
  else
    number = admit(ARGV[3], kind, ttl, had)
    -- A failure here cannot take the grant back.
    if w == id then pcall(advance, true) end
  end
  return {'granted', fence, ttl, number and number + 1 or 0, ahead or '', now, up, longest}
end
