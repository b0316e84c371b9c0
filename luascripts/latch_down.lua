-- latch_down: counts a latch down.
-- include: reply, latch
--
-- KEYS[1] count   string the count
-- KEYS[2] rounds  hash   round, open, gone (include_latch)
-- KEYS[3] calls   zset   call that was counted -> ms until which it is remembered
-- KEYS[4] never   string never there (include_semaphore)
-- ARGV[1] id      text   no other call has it
-- ARGV[2] part    text   a name, which counts once in each round; '' when the call has none
-- ARGV[3] keep    ms     how long the call is remembered
-- ARGV[4] stay    ms     how long the traces of the latch live
-- ARGV[5] channel text   where waiters listen
-- ARGV[6] publish text   the command that reaches them: PUBLISH or SPUBLISH
-- ARGV[7] again   count  1 when it repeats a call whose copy may come late
-- ARGV[8] n       count  by how much it counts, up to 1000; 1 with a part
--
-- Returns {did, left, round, open, gone} (include_latch): did is how many of the n are counted, now or before: fewer than n when
-- the count came to 0 with them. A part is counted, too, when another call counted it.
-- Returns -4: a key holds something else; nothing was done.
--
-- Safe to repeat while the call is remembered.
local count, rounds, calls, never = KEYS[1], KEYS[2], KEYS[3], KEYS[4]
local id, part, keep, stay = ARGV[1], ARGV[2], tonumber(ARGV[3]), tonumber(ARGV[4])
local channel, publish, again, n = ARGV[5], ARGV[6], ARGV[7], tonumber(ARGV[8])

local now = micros()
local left, round, open, gone, known = tally(count, rounds, calls, id, now, stay)
if not left then return round end
local did = carried_out(known, n)
local counted = id
if not did and part ~= '' then
  counted = string.format('%.0f', round) .. ':' .. part
  did = carried_out(redis.call('ZSCORE', calls, counted), 1)
end
if did or left == 0 then
  redis.call('HDEL', rounds, '') -- no such field: a replica, whose data may be old, refuses it
  if not known then note_answer(calls, id, n - (did or 0), now, keep, stay, again) end
  return {did or 0, left, round, open, gone}
end

may(never)
local old = redis.call('ZRANGEBYSCORE', calls, '-inf', string.format('%.0f', now / 1000), 'LIMIT', 0, 10)
redis.call('ZREM', calls, '', unpack(old)) -- '' is no member: a user without the right is told before anything has changed
did = math.min(n, left)
redis.call('ZADD', calls, until_when(now, keep, n - did), counted)
-- mutant: always: speed
if part ~= '' then note_answer(calls, id, 0, now, keep, stay, again) end -- a late copy counts in no later round
left = left - did
local denied
if left > 0 then
  denied = redis.pcall('SET', count, string.format('%.0f', left), 'KEEPTTL')
else
  open = round
  denied = redis.pcall('HSET', rounds, 'open', string.format('%.0f', open))
  if type(denied) == 'number' then denied = redis.pcall('DEL', count) end
end
if failed(denied) then -- an error means that the call is not counted
  redis.call('ZREM', calls, counted, id)
  return denied
end
remember(count, rounds, calls, stay)
if left == 0 then redis.pcall(publish, channel, '0') end
return {did, left, round, open, gone}
