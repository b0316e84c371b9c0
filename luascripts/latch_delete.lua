-- latch_delete: deletes a latch.
-- include: reply, latch
--
-- KEYS[1] count   string the count
-- KEYS[2] rounds  hash   round, open, gone, last (include_latch)
-- KEYS[3] calls   zset   counted call -> ms until which it is remembered
-- KEYS[4] never   string a key that never exists (include_fair)
-- ARGV[1] id      text   unique to the call
-- ARGV[2] retention ms   how long the call is remembered
-- ARGV[3] ttl     ms     how long rounds and calls stay in Redis
-- ARGV[4] channel text   the channel of the waiters
-- ARGV[5] publish text   the command that notifies them: PUBLISH or SPUBLISH
-- ARGV[6] again   count  1 if an earlier copy of the call may still arrive
--
-- Returns {counted, left, round, open, gone} (include_latch). counted is 1 if this call, or an earlier copy, deleted the
-- latch; 0 if there was none.
-- Returns -4: a key has the wrong type; nothing was changed.
--
-- Rounds stays in Redis, so that waiters can tell a deleted latch from one that was released.
--
-- Safe to repeat while the call is remembered.
local count, rounds, calls, never = KEYS[1], KEYS[2], KEYS[3], KEYS[4]
local id, retention, ttl, channel, publish, again = ARGV[1], tonumber(ARGV[2]), tonumber(ARGV[3]), ARGV[4], ARGV[5], ARGV[6]

local now = micros()
local left, round, opened, deleted, remembered = read_latch(count, rounds, calls, id, now, ttl)
if not left then return round end
redis.call('HDEL', rounds, '') -- deletes nothing; a replica, whose data may be old, rejects it
local counted = counted_before(remembered, 1)
if counted then return {counted, left, round, opened, deleted} end
if deleted == round then -- deleted already, or never created: then both are 0
  remember_repeat(calls, id, 1, now, retention, ttl, again)
  return {0, left, round, opened, deleted}
end
check_permissions(never)
redis.call('ZREM', calls, '') -- deletes nothing; after a write that needs no memory, full memory does not stop the rest
redis.call('ZADD', calls, remembered_until(now, retention, 0), id)
deleted = round
local denied = failed(redis.pcall('HSET', rounds, 'gone', string.format('%.0f', deleted)))
if denied then -- an error must mean that the latch still exists
  redis.call('ZREM', calls, id)
  return denied
end
redis.call('DEL', count)
extend_state(count, rounds, calls, ttl)
redis.pcall(publish, channel, '1') -- as Redisson does
return {1, 0, round, opened, deleted}
