-- quit.lua - end the hold if the lock is ours, leave the queue (id '': not in the queue), call the
-- next waiter. True: the lock was ours. See free.lua for mine and line.
local function quit(id)
  if value == ARGV[3] then
    redis.call('DEL', name)
    unmark(value)
    value = false
  elseif not mine and kind_of(ARGV[3]) ~= 'x' then
    mine = give_up(ARGV[3])
  end

  -- Where the queue is on another node, its waiters retry by themselves.
  near(function()
    local first = false
    if id ~= '' then
      local w, second, third = unpack(redis.call('ZRANGE', queue, '0', '2'))
      first = w == id
      drop(id)
      if second == id and third then tell(third, 'second') end
    end
    if not value and (mine or first) then
      if not offer('', true, false, line) then claimed(nil) end
    elseif epoch and (mine or first) then
      advance(first)
    elseif first then
      watch('')
    end
  end)
  return mine
end
