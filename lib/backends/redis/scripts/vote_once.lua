-- vote_once.lua - vote.lua for an exclusive client with --once. Unlike a single server, one of several does not decide
-- whether the run is skipped: its vote comes with the run record.
-- ARGV and answer: parts/look.lua. A vote's answer goes on with 0, the record (false: there is none; the type of something
-- else that is in its place), and for how long it is kept (ms).
-- instead of parts/holders.lua: parts/alone.lua
local name, prefix, SHOWN = KEYS[1], ARGV[2], 1200
if ARGV[1] ~= '0' then redis.call('SELECT', ARGV[1]) end
-- First: a script that fails half-way must not have given a vote.
-- include parts/run_read.lua
local text, kind = last_run()
local function vote()
-- include vote.lua
end
local answer = vote()
if answer[1] == 'granted' then
  answer[9] = 0
  answer[10] = text or kind or false
  answer[11] = redis.call('PTTL', once)
end
return answer
