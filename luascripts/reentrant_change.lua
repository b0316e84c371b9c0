-- reentrant_change: takes and gives back many plain locks.
-- include: stamp, seize, channels, keeps
-- later: take, give
--
-- Most changes are alike. So they come in runs, and the words that those of a run have in common
-- come once, before it.
--
-- KEYS[k]     lock      hash    owner -> hold count, and the line (include_line)
-- KEYS[k+1]   register  string  the latest fencing token; only where locks are taken with fencing
-- ARGV[1]     publish   text    the command that reaches waiters: PUBLISH or SPUBLISH
-- ARGV[2]     counts    count   1 when the server counts all listeners of a channel
-- ARGV[a]     verb      text    "take" or "give"; this and the following come once for each run
-- ARGV[a+1]   number    count   how many locks the run has
-- ARGV[a+2]   holds     count   the hold count that must result
-- ARGV[a+3]   lease     ms      takes: what the lock lives on without a renewal
-- ARGV[a+4]   place     text    takes: as in reentrant_acquire
-- ARGV[a+5]   spare     count   takes: how many tokens more the register is raised by; "" without fencing
-- ARGV[b]     owner     text    "<client uuid>:<number>"; once for each lock of the run
--
-- Returns a list with the answer to each change, which is that of reentrant_acquire, or that of
-- reentrant_release without an heir. An error is the answer to one change, and does not
-- touch the others.
--
-- Safe to repeat, as each change is.
local publish, counts = ARGV[1], ARGV[2] == '1'
local time = redis.call('TIME')

-- made returns the functions of the later files. To make all of them takes longer than to take a
-- lock that is free, or to free one for which nobody waits; and most are so.
local functions
local function made()
  functions = functions or later() -- mutant: operand 1: speed
  return functions
end

-- answer returns what f returns, or the error with which it ended.
local function answer(f, ...)
  local fine, reply = pcall(f, ...)
  if fine then return reply end
  return redis.error_reply('ERR Error running script: ' .. reply) -- what pcall says is a text
end

local replies, n, k, a = {}, 0, 1, 3
while a <= #ARGV do -- mutant: border: a run has more words than its first
  local verb, number, holds = ARGV[a], tonumber(ARGV[a + 1]), ARGV[a + 2]
  local takes = verb == 'take'
  local lease, place, spare = ARGV[a + 3], ARGV[a + 4], ARGV[a + 5] -- of a run that takes
  local fenced, first = takes and spare ~= '', takes and a + 6 or a + 3
  for b = first, first + number - 1 do
    local lock, owner, reply = KEYS[k], ARGV[b], nil
    if fenced then
      local register = KEYS[k + 1]
      reply = answer(made().taken, lock, register, time, owner, lease, holds, spare, place, counts)
      k = k + 1
    elseif takes and holds == '1' and redis.pcall('HLEN', lock) == 0 then -- mutant: never: speed
      reply = seized(lock, owner, lease, stamped(time))
    elseif takes then
      reply = answer(made().taken, lock, nil, time, owner, lease, holds, nil, place, counts)
    -- mutant: never, removed: speed
    elseif holds == '0' and redis.pcall('HLEN', lock) == 1 and redis.pcall('HDEL', lock, owner) == 1 then
      local heard = redis.pcall(publish, everybody(lock), '0') -- a hint: its refusal must not undo a release
      reply = keeps(owner) and not (counts and heard == 0) and 3 or 1
    else
      reply = answer(made().given, lock, nil, time, owner, holds, publish, counts)
    end
    n, k = n + 1, k + 1
    replies[n] = reply
  end
  a = first + number
end
return replies
