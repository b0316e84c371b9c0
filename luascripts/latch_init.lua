-- latch_init: sets the count of a latch that has none.
-- include: reply, latch
--
-- KEYS[1] count   string the count
-- KEYS[2] rounds  hash   round, open, gone (include_latch)
-- KEYS[3] calls   zset   call that was counted -> ms until which it is remembered
-- KEYS[4] never   string never there (include_semaphore)
-- ARGV[1] n       count  the count
-- ARGV[2] id      text   no other call has it
-- ARGV[3] keep    ms     how long the call is remembered
-- ARGV[4] stay    ms     how long the traces of the latch live
-- ARGV[5] channel text   where waiters listen
-- ARGV[6] publish text   the command that reaches them: PUBLISH or SPUBLISH
-- ARGV[7] again   count  1 when it repeats a call whose copy may come late
--
-- Returns {did, left, round, open, gone} (include_latch): did is 1 when this call made the latch, 0 when there was one.
-- Returns -4: a key holds something else; nothing was done.
--
-- Safe to repeat. A count of 0 or less, which Redisson can leave, counts as none.
local count, rounds, calls, never = KEYS[1], KEYS[2], KEYS[3], KEYS[4]
local n, id, keep, stay, channel, publish, again = ARGV[1], ARGV[2], tonumber(ARGV[3]), tonumber(ARGV[4]), ARGV[5], ARGV[6], ARGV[7]

local now = micros()
local left, round, open, gone, known = tally(count, rounds, calls, id, now, stay)
if not left then return round end
local did = carried_out(known, 1)
if did or left > 0 then
  redis.call('HDEL', rounds, '') -- no such field: a replica, whose data may be old, refuses it
end
if did then return {did, left, round, open, gone} end
if left > 0 then
  note_answer(calls, id, 1, now, keep, stay, again)
  remember(count, rounds, calls, stay)
  return {0, left, round, open, gone}
end
round = math.max(now, round + 1)
redis.call('SET', count, n) -- refused here when memory is full: nothing is left in Redis
local denied = failed(redis.pcall('PTTL', never)) or failed(redis.pcall('PEXPIRE', never, 1)) -- which remember needs
denied = denied or failed(redis.pcall('ZADD', calls, until_when(now, keep, 0), id))
denied = denied or failed(redis.pcall('HSET', rounds, 'round', string.format('%.0f', round)))
if denied then -- an error means that there is no latch
  redis.pcall('ZREM', calls, id)
  redis.call('DEL', count)
  return denied
end
remember(count, rounds, calls, stay)
redis.pcall(publish, channel, '1')
return {1, tonumber(n), round, open, gone}
