-- latch_down: counts a latch down by one.
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
--
-- Returns {did, left, round, open, gone} (include_latch): did is 1 when the call or its part is counted, now or before; 0 when
-- the count was 0 before.
-- Returns -4: a key holds something else; nothing was done.
--
-- Safe to repeat while the call is remembered.
local count, rounds, calls, never = KEYS[1], KEYS[2], KEYS[3], KEYS[4]
local id, part, keep, stay = ARGV[1], ARGV[2], tonumber(ARGV[3]), tonumber(ARGV[4])
local channel, publish, again = ARGV[5], ARGV[6], ARGV[7]

local now = micros()
local left, round, open, gone = tally(count, rounds, calls, now, stay)
if not left then return round end
redis.call('HDEL', rounds, '') -- no such field: a replica, whose data may be old, refuses it
local did = carried_out(calls, id)
if did then return {did, left, round, open, gone} end
local counted = id
if part ~= '' then
  counted = string.format('%.0f', round) .. ':' .. part
  did = carried_out(calls, counted)
end
if did or left == 0 then
  note_answer(calls, id, did, now, keep, stay, again)
  return {did or 0, left, round, open, gone}
end

may(never)
redis.call('ZREM', calls, '') -- no such member: a first write that memory limits let through
local old = redis.call('ZRANGEBYSCORE', calls, '-inf', string.format('%.0f', now / 1000), 'LIMIT', 0, 10)
if #old > 0 then redis.call('ZREM', calls, unpack(old)) end
redis.call('ZADD', calls, string.format('%.0f', now / 1000 + keep), counted)
-- mutant: always: speed
if part ~= '' then note_answer(calls, id, 1, now, keep, stay, again) end -- a late copy counts in no later round
left = left - 1
local denied
if left > 0 then
  denied = redis.pcall('DECR', count)
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
return {1, left, round, open, gone}
