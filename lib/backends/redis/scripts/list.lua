-- list.lua - a page of the locks in this server that are held or waited for. Writes nothing.
--
-- No KEYS: any server answers, in a cluster for its own keys. ARGV: db, cursor, how many keys to
-- look at, 'all': free locks with a run record, too -> the next cursor ('0': the last page), how
-- many locks the user may not read, and of each lock: name, left ms, fence, number of holders,
-- number of waiters, the value of a holder ('': free) and its mark's text or ''. A lock may be
-- there twice.
-- include parts/role.lua
if ARGV[1] ~= '0' then redis.call('SELECT', ARGV[1]) end
-- include parts/clock.lua
local name, prefix, value
-- include parts/mark.lua
local SHOWN = 1200
local all = ARGV[4] == 'all'
local lasts = {fence = true, queue = true, holders = true, once = all}
local keys = all and '*:dlock:[fqho]*' or '*:dlock:[fqh]*'
local page = redis.pcall('SCAN', ARGV[2], 'MATCH', keys, 'COUNT', ARGV[3])
local function refused(text)
  return string.find(text, 'executing the script', 1, true)
    or string.find(text, 'ACL failure', 1, true)
end
if page.err then return refused(page.err) and redis.error_reply('LACKS +scan') or page end
local out, had = {page[1], 0}, {}

-- The name and the prefix (script.h) in a key; nil: not a key of dlock.
local function name_of(key)
  local inner, last = string.match(key, '^(.*):dlock:(%l+)')
  if not inner or not lasts[last] or string.find(key, '%c') then return end
  local bare, tagged = string.match(inner, '^{(.+)}$'), string.match(inner, '^(.*):$')
  local tag = '^[^{]*{[^}]+}'
  if bare and not string.find(bare, tag) then return bare, inner .. ':dlock:' end
  if tagged and string.find(tagged, tag) then return tagged, inner .. ':dlock:' end
end

-- The number that a command answers; 0: an error.
local function number(...)
  local said = redis.pcall(...)
  return type(said) == 'number' and said or 0
end

-- Waiters, the dead aside where they are few.
local function waiting()
  local n = number('ZCARD', prefix .. 'queue')
  if n == 0 or n > 8 then return n end
  local said, alive = redis.pcall('HVALS', prefix .. 'waiters'), 0
  if said.err then return n end
  for _, entry in ipairs(said) do
    if (tonumber(string.match(entry, '^%d+')) or 0) >= now then alive = alive + 1 end
  end
  return math.min(n, alive)
end

-- The number of holders, and the value of one; see holders.lua for the scores.
local function holding()
  local epoch = value and string.match(value, '^dlock:shared:(%x+)$')
  if not epoch then return value and 1 or 0, value or '' end
  local holders, free = prefix .. 'holders:' .. epoch, '(8500000000000000'
  local reader = string.format('%.0f', now + 1)
  local slot = string.format('%.0f', 4e15 + (now + 1) * 1000)
  local n = number('ZCOUNT', holders, reader, '(4000000000000000')
  n = n + number('ZCOUNT', holders, slot, free)
  local one = redis.pcall('ZREVRANGEBYSCORE', holders, free, reader, 'LIMIT', 0, 1)
  return n, one[1] or ''
end

for _, key in ipairs(page[2]) do
  name, prefix = name_of(key)
  if name and not had[name] then
    had[name] = true
    value = redis.pcall('GET', name)
    if type(value) == 'table' then
      if refused(value.err) then out[2] = out[2] + 1 end
    else
      local waiters, holders, shown = waiting(), holding()
      local ran = all and type(redis.pcall('GET', prefix .. 'once')) == 'string'
      if holders > 0 or waiters > 0 or ran then
        local fence = redis.pcall('GET', prefix .. 'fence')
        out[#out + 1] = {name, number('PTTL', name), type(fence) == 'string' and fence or '0',
          holders, waiters, string.sub(shown, 1, SHOWN), mark_of(shown) or ''}
      end
    end
  end
end
return out
