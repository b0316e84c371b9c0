-- reentrant_change: takes and gives back many plain locks.
-- include: take, give
--
-- KEYS[k]     lock      hash    owner -> hold count, and the line (include_line)
-- KEYS[k+1]   register  string  the latest fencing token; only with fencing
-- ARGV[1]    publish  text   the command that reaches waiters: PUBLISH or SPUBLISH
-- ARGV[2]    counts   count  1 when the server counts all listeners of a channel
-- ARGV[a]    verb     text   "take" or "give"; with fencing "take+" or "give+". This and the following come once for each change
-- ARGV[a+1]  owner    text   "<client uuid>:<number>"
-- ARGV[a+2]  holds    count  the hold count that must result
-- ARGV[a+3]  ours     text   the channel of all clients that know of the line
-- ARGV[a+4]  lease    ms     takes: what the lock lives on without a renewal
-- ARGV[a+5]  place    text   takes: as in reentrant_acquire
-- ARGV[b]    channel  text   gives back: where waiters listen; b is a+4
-- ARGV[b+1]  last     text   gives back: the last token that the owner gave out
-- ARGV[a+6]  spare    count  how many tokens more the register is raised by; missing without fencing
--
-- Returns a list with the answer to each change, which is that of reentrant_acquire, or that of
-- reentrant_release without an heir. An error is the answer to one change, and does not
-- touch the others.
--
-- Safe to repeat, as each change is.
local publish, counts = ARGV[1], ARGV[2] == '1'
local time = redis.call('TIME')

-- answer returns what f returns, or the error with which it ended.
local function answer(f, ...)
  local fine, reply = pcall(f, ...)
  if fine then return reply end
  if type(reply) == 'table' then return reply end
  return redis.error_reply('ERR Error running script: ' .. reply) -- servers before 7 have a text
end

local replies, k, a = {}, 1, 3
for i = 1, #ARGV do
  local verb, owner, holds, ours = ARGV[a], ARGV[a + 1], ARGV[a + 2], ARGV[a + 3]
  if not verb then break end
  local lock, b = KEYS[k], a + 4
  local fenced = string.sub(verb, 5) == '+'
  local register = fenced and KEYS[k + 1] or nil
  local spare = fenced and ARGV[a + 6] or nil
  if string.sub(verb, 1, 4) == 'take' then
    local lease, place = ARGV[a + 4], ARGV[a + 5]
    replies[i] = answer(taken, lock, register, time, owner, lease, holds, spare, place, ours, counts)
  else
    local channel, last = ARGV[b], ARGV[b + 1]
    replies[i] = answer(given, lock, register, time, owner, holds, channel, publish, counts, ours, last, spare)
  end
  k, a = k + (fenced and 2 or 1), a + (fenced and 7 or 6)
end
return replies
