-- latch_delete: deletes a latch.
-- include: reply, latch
--
-- KEYS[1] count   string the count
-- KEYS[2] rounds  hash   round, open, gone (include_latch)
-- KEYS[3] calls   zset   call that was counted -> ms until which it is remembered
-- KEYS[4] never   string never there (include_semaphore)
-- ARGV[1] id      text   no other call has it
-- ARGV[2] keep    ms     how long the call is remembered
-- ARGV[3] stay    ms     how long the traces of the latch live
-- ARGV[4] channel text   where waiters listen
-- ARGV[5] publish text   the command that reaches them: PUBLISH or SPUBLISH
-- ARGV[6] again   count  1 when it repeats a call whose copy may come late
--
-- Returns {did, left, round, open, gone} (include_latch): did is 1 when this call deleted a latch, now or by an earlier
-- copy; 0 when there was none.
-- Returns -4: a key holds something else; nothing was done.
--
-- Safe to repeat. The traces stay, so that waiters learn that the latch is gone, and not open.
local count, rounds, calls, never = KEYS[1], KEYS[2], KEYS[3], KEYS[4]
local id, keep, stay, channel, publish, again = ARGV[1], tonumber(ARGV[2]), tonumber(ARGV[3]), ARGV[4], ARGV[5], ARGV[6]

local now = micros()
local left, round, open, gone, known = tally(count, rounds, calls, id, now, stay)
if not left then return round end
redis.call('HDEL', rounds, '') -- no such field: a replica, whose data may be old, refuses it
local did = carried_out(known, 1)
if did then return {did, left, round, open, gone} end
if gone == round then -- also without any: both are 0
  note_answer(calls, id, 1, now, keep, stay, again)
  return {0, left, round, open, gone}
end
may(never)
redis.call('ZREM', calls, '') -- no such member: a first write that memory limits let through
redis.call('ZADD', calls, until_when(now, keep, 0), id)
gone = round
local denied = failed(redis.pcall('HSET', rounds, 'gone', string.format('%.0f', gone)))
if denied then -- an error means that the latch is there
  redis.call('ZREM', calls, id)
  return denied
end
redis.call('DEL', count)
remember(count, rounds, calls, stay)
redis.pcall(publish, channel, '1') -- as Redisson does
return {1, 0, round, open, gone}
