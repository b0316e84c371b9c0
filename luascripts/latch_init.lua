-- latch_init: sets the count of a latch that does not exist or has been released.
-- include: reply, latch
--
-- KEYS[1] count   string the count
-- KEYS[2] rounds  hash   round, open, gone, last (include_latch)
-- KEYS[3] calls   zset   counted call -> ms until which it is remembered
-- KEYS[4] never   string a key that never exists (include_fair)
-- ARGV[1] n       count  the count
-- ARGV[2] id      text   unique to the call
-- ARGV[3] retention ms   how long the call is remembered
-- ARGV[4] ttl     ms     how long rounds and calls stay in Redis
-- ARGV[5] channel text   the channel of the waiters
-- ARGV[6] publish text   the command that notifies them: PUBLISH or SPUBLISH
-- ARGV[7] again   count  1 if an earlier copy of the call may still arrive
--
-- Returns {counted, left, round, open, gone} (include_latch). counted is 1 if this call, or an earlier copy, created the
-- latch; 0 if there was one.
-- Returns -4: a key has the wrong type; nothing was changed.
--
-- A count of 0 or less, which Redisson may leave behind, is treated as no latch.
--
-- Safe to repeat while the call is remembered.
local count, rounds, calls, never = KEYS[1], KEYS[2], KEYS[3], KEYS[4]
local n, id, retention, ttl, channel, publish, again = ARGV[1], ARGV[2], tonumber(ARGV[3]), tonumber(ARGV[4]), ARGV[5], ARGV[6], ARGV[7]

local now = micros()
local left, round, opened, deleted, remembered = read_latch(count, rounds, calls, id, now, ttl)
if not left then return round end
local counted = counted_before(remembered, 1)
if counted or left > 0 then
  redis.call('HDEL', rounds, '') -- deletes nothing; a replica, whose data may be old, rejects it
end
if counted then return {counted, left, round, opened, deleted} end
if left > 0 then
  remember_repeat(calls, id, 1, now, retention, ttl, again)
  extend_state(count, rounds, calls, ttl)
  return {0, left, round, opened, deleted}
end
round, deleted = next_round(round, deleted, now)
redis.call('SET', count, n) -- the first write: if memory is full, it fails, and leaves nothing in Redis
local denied = failed(redis.pcall('PTTL', never)) or failed(redis.pcall('PEXPIRE', never, 1)) -- check the commands that extend_state needs
denied = denied or failed(redis.pcall('ZADD', calls, remembered_until(now, retention, 0), id))
denied = denied or failed(redis.pcall('HSET', rounds, 'round', string.format('%.0f', round), 'gone', string.format('%.0f', deleted)))
if denied then -- an error must mean that there is no latch
  redis.pcall('ZREM', calls, id)
  redis.call('DEL', count)
  return denied
end
extend_state(count, rounds, calls, ttl)
redis.pcall(publish, channel, '1')
return {1, tonumber(n), round, opened, deleted}
