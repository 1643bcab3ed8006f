-- why.lua - why was a script refused? Finds the keys that another program has written, the rights
-- that the user lacks and the commands that the server lacks, by calls that change nothing:
-- PREFIXwhy does not exist, and the commands that would make it are malformed.
--
-- ARGV: name, db, prefix, the kind of the client (parts/holders.lua) -> an error, NOCOMMAND and the
-- commands, LACKS and the rules that are missing, or as parts/wrong.lua; anything else: not found
local name, db, prefix, kind = ARGV[1], ARGV[2], ARGV[3], ARGV[4]
-- include parts/wrong.lua
local rules, unknown = '', ''

-- The answer to a command; a rule for what the user may not do.
local function try(...)
  local command, key = ...
  local answer = redis.pcall(...)
  local text, rule = type(answer) == 'table' and answer.err or ''
  if string.find(text, 'command called from', 1, true)
    and not string.find(unknown .. ' ', ' ' .. command .. ' ', 1, true)
  then
    unknown = unknown .. ' ' .. command
  end
  if string.find(text, 'executing the script', 1, true) or string.find(text, 'ACL failure', 1, true)
  then
    if string.find(text, ' run ', 1, true) then rule = '+' .. string.lower(command)
    elseif key == name then rule = '~' .. name
    else rule = (command == 'PUBLISH' and '&' or '~') .. prefix .. '*' end
    if not string.find(rules .. ' ', ' ' .. rule .. ' ', 1, true) then
      rules = rules .. ' ' .. rule
    end
  end
  return answer
end
local function try_all(calls)
  for call in string.gmatch(calls, '[^,]+') do
    local command, words = string.match(call, '^(%S+) ?(.*)$')
    local arguments = {}
    for word in string.gmatch(words, '%S+') do arguments[#arguments + 1] = word end
    try(command, prefix .. 'why', unpack(arguments))
  end
end

if db ~= '0' then try('SELECT', db) end
if rules ~= '' then return redis.error_reply('LACKS' .. rules) end
local value = try('GET', name)
local epoch = type(value) == 'string' and string.match(value, '^dlock:shared:(%x+)$')
local kinds = 'fence string,once string,claim string,longest string,queue zset,waiters hash'
if epoch then kinds = kinds .. ',holders:' .. epoch .. ' zset' end
local function foreign(key, wanted)
  local found = try('TYPE', key).ok or 'none'
  return found ~= 'none' and found ~= wanted and found
end
local found = foreign(name, 'string')
if found then return wrong_name(found) end
for word, wanted in string.gmatch(kinds, '([%w:]+) (%l+)') do
  found = foreign(prefix .. word, wanted)
  if found then
    return wrong_key(prefix .. word, 'is a ' .. found .. ', not one of dlock; use another name')
  end
end

try('TIME')
try_all('SET x x,DEL,PTTL,PEXPIRE 1,PUBLISH x,ZADD x x,ZRANGE 0 0,ZRANK x,ZREM x,ZSCORE x,ZCARD')
try_all('HGET x,HMGET x,HSET x x x,HDEL x')
if epoch or kind ~= '' then
  try_all('ZCOUNT 0 0,ZRANGEBYSCORE 0 0,ZREVRANGEBYSCORE 0 0,ZREMRANGEBYSCORE 1 0,GETRANGE 0 0')
end
-- Only a restart grace needs INFO.
if rules == '' then try('INFO', 'server') end
if unknown ~= '' then return redis.error_reply('NOCOMMAND unknown command' .. unknown) end
if rules ~= '' then return redis.error_reply('LACKS' .. rules) end
