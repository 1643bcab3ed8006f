-- stay.lua - the end of a hold with --min-hold: the lock stays held for ms from now, or until its
-- earlier expiry. Our value gets ' over=1' at its end: no late renewal of ours finds this value,
-- and all others read the value as before. False: the lock was not ours, or the hold is marked, and
-- ends at once.
local function stay(ms)
  if is_marked(ARGV[3]) then return false end
  local over = ARGV[3] .. ' over=1'
  if value == ARGV[3] then
    local left = redis.call('PTTL', name)
    if left > 0 then ms = math.min(ms, left) end
    redis.call('PEXPIRE', name, ms) -- first: see finish.lua
    redis.call('SET', name, over, 'PX', ms)
    return string.format(' %.0f ', ms) .. over
  end
  local score = kind_of(ARGV[3]) ~= 'x' and ours(ARGV[3])
  if not score then return false end
  local ends = math.min(expiry(score), now + ms)
  local number = score % 1000
  redis.call('ZADD', holders, digits(score < SLOT and ends or SLOT + ends * 1000 + number), over)
  redis.call('ZREM', holders, ARGV[3])
  local last = digits(latest() - now)
  redis.call('PEXPIRE', name, last)
  redis.call('PEXPIRE', holders, last) -- no client is left to delete the zset
  return ''
end
