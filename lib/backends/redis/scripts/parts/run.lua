-- run.lua - write the record of --once.
-- include parts/run_read.lua
local token, who, lease = string.match(ARGV[3], '^(%x+) (.*) ttl=(%d+)')

-- Write our record. kept: ms; one ttl more, so that a release that is sent again finds the record.
local function write_run(state, status, fence, begin, ended, kept)
  local text = 'dlock-run1 ' .. state .. ' ' .. status .. ' ' .. fence .. ' ' .. token
  text = text .. ' ' .. begin .. ' ' .. ended .. ' ' .. kept .. ' ' .. who
  redis.call('SET', once, text, 'PX', digits(kept + lease))
end
