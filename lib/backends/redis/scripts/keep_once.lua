-- keep_once.lua - keep.lua, and the run record in the same step: it says that the run of this value has begun.
-- The last argument: restart grace ms, then parts/put.lua. The answer goes on with: is the record ours (1; 0: no).
-- instead of parts/holders.lua: parts/alone.lua
-- instead of parts/plain.lua: parts/put.lua
local last, recorded = ARGV[#ARGV], 0
-- include parts/more.lua
local function keep()
-- include keep.lua
end
local answer = keep()
if not answer.err then answer[4] = recorded end
return answer
