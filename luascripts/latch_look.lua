-- latch_look: tells how a latch stands.
-- include: latch
--
-- KEYS[1] count   string the count
-- KEYS[2] rounds  hash   round, open, gone (include_latch)
-- KEYS[3] calls   zset   call that was counted -> ms until which it is remembered
-- KEYS[4] never   string never there (include_semaphore)
-- ARGV[1] stay    ms     how long the traces of the latch live
--
-- Returns {0, left, round, open, gone} (include_latch).
-- Returns -4: a key holds something else.
--
-- Safe to repeat. It changes nothing but the traces.
local count, rounds, calls, never = KEYS[1], KEYS[2], KEYS[3], KEYS[4]
local stay = tonumber(ARGV[1])

local left, round, open, gone = tally(count, rounds, calls, '', micros(), stay)
if not left then return round end
redis.call('HDEL', rounds, '') -- no such field: a replica, whose data may be old, refuses it
if round > 0 then remember(count, rounds, calls, stay) end -- mutant: always, border: speed
return {0, left, round, open, gone}
