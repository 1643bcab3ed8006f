-- run.lua - the record of --once, for those that write it.
-- include parts/run_read.lua
local token, who, lease = string.match(ARGV[3], '^(%x+) (.*) ttl=(%d+)$')

-- Write ours. kept: ms. For one ttl more it is there, so that a release that is sent again finds
-- what it has written.
local function write_run(state, status, fence, begin, ended, kept)
  local text = 'dlock-run1 ' .. state .. ' ' .. status .. ' ' .. fence .. ' ' .. token
  text = text .. ' ' .. begin .. ' ' .. ended .. ' ' .. kept .. ' ' .. who
  redis.call('SET', once, text, 'PX', digits(kept + lease))
end
