-- unvote_once.lua - leave.lua for a vote with --once or --min-hold: the lock may stay held, and the run record is written in
-- the same step.
-- The last argument: restart grace ms, what is left of the least hold (ms, 0: the lock is freed), and with a record
-- parts/put.lua. The answer goes on with: is the record there now (1; 0: no).
-- instead of parts/plain.lua: parts/end_vote.lua
local last, recorded = ARGV[#ARGV], 0
-- include parts/more.lua
local function leave()
-- include leave.lua
end
local answer = leave()
if not answer.err then answer[4] = recorded end
return answer
