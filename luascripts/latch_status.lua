-- latch_status: reads the count and the round of a latch.
-- include: latch
--
-- KEYS[1] count   string the count
-- KEYS[2] rounds  hash   round, open, gone, last (include_latch)
-- KEYS[3] calls   zset   counted call -> ms until which it is remembered
-- KEYS[4] never   string a key that never exists (include_fair)
-- ARGV[1] ttl     ms     how long rounds and calls stay in Redis
--
-- Returns {0, left, round, open, gone} (include_latch).
-- Returns -4: a key has the wrong type.
--
-- Safe to repeat: it changes only rounds and calls.
local count, rounds, calls, never = KEYS[1], KEYS[2], KEYS[3], KEYS[4]
local ttl = tonumber(ARGV[1])

local left, round, opened, deleted = read_latch(count, rounds, calls, '', micros(), ttl)
if not left then return round end
redis.call('HDEL', rounds, '') -- deletes nothing; a replica, whose data may be old, rejects it
if round > 0 then extend_state(count, rounds, calls, ttl) end -- mutant: always, border: speed
return {0, left, round, opened, deleted}
