-- reentrant_change: takes and gives back many plain locks.
-- include: take, give
--
-- KEYS[k]     lock      hash    owner -> hold count, and the line (include_line)
-- KEYS[k+1]   register  string  the latest fencing token; only with fencing
-- ARGV[1]    publish  text   the command that reaches waiters: PUBLISH or SPUBLISH
-- ARGV[2]    counts   count  1 when the server counts all listeners of a channel
-- ARGV[a]    keys     count  how many of KEYS the change has: 2 with fencing. This and the following come once for each change
-- ARGV[a+1]  owner    text   "<client uuid>:<number>"
-- ARGV[a+2]  holds    count  the hold count that must result
-- ARGV[a+3]  spare    count  how many tokens more the register is raised by
-- ARGV[a+4]  ours     text   the channel of all clients that know of the line
-- ARGV[a+5]  lease    ms     takes: how long the lock lives without a renewal; "" gives back
-- ARGV[a+6]  offer    ms     takes: as in reentrant_acquire, and so are the following; "" if the owner does not stand in line, and then the following are missing
-- ARGV[a+7]  waited   ms     takes
-- ARGV[a+8]  again    ms     takes
-- ARGV[a+9]  keep     ms     takes
-- ARGV[b]    last     text   gives back: the last token that the owner gave out; b is a+6
-- ARGV[b+1]  channel  text   gives back: where waiters listen
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
while a <= #ARGV do
  local keys, owner, holds, spare, ours, lease = ARGV[a], ARGV[a + 1], ARGV[a + 2], ARGV[a + 3], ARGV[a + 4], ARGV[a + 5]
  local lock = KEYS[k]
  local register = keys == '2' and KEYS[k + 1] or nil
  if lease == '' then
    local b = a + 6
    local last, channel = ARGV[b], ARGV[b + 1]
    local waiters = {channel = channel, publish = publish, counts = counts, ours = ours}
    replies[#replies + 1] = answer(given, lock, register, time, owner, holds, waiters, last, spare)
    a = b + 2
  else
    local offer, place = ARGV[a + 6], nil
    if offer ~= '' then
      local waited, again, keep = ARGV[a + 7], ARGV[a + 8], ARGV[a + 9]
      place = {offer = offer, waited = tonumber(waited), again = tonumber(again), keep = tonumber(keep), channel = ours, counts = counts}
    end
    replies[#replies + 1] = answer(taken, lock, register, time, owner, lease, holds, spare, place)
    a = a + (place and 10 or 7)
  end
  k = k + tonumber(keys)
end
return replies
