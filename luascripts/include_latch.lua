-- include_latch: a latch in the layout of Redisson's RCountDownLatch. It has no keys of its own.
-- include: reply
--
-- Redisson keeps the count alone: a string, which is deleted when it comes to 0. So a latch that is open looks like
-- one that was never made. These scripts keep beside it
--
-- rounds  round  the time at which the latch was made, in the server's µs; a later round has a larger one
--         open   the latest round whose count came to 0
--         gone   the latest round that was deleted
-- calls   each call -> the server's time in ms until which it is remembered; and 1/1024 ms more for each count that it did not do, if
--         an earlier copy may still come. Calls of one process that count together are one here. A part that has a name
--         stands there as <round>:<name>, too
--
-- A latch that Redisson makes gets a round when one of these scripts sees it.

-- remember makes the traces of a latch live for `stay` ms from now. If the count has an expiry, the rounds have it, too, a little sooner,
-- so that a count that expires is not taken for one that came to 0.
local function remember(count, rounds, calls, stay)
  local long, left = redis.call('PTTL', rounds), redis.call('PTTL', count)
  if left >= 0 then -- mutant: border: an expiry is in the future
    left = left - 2 -- the clock can go on between two commands
    -- mutant: border 2: speed
    if long < math.max(left - 1000, 0) or long > left then redis.call('PEXPIRE', rounds, left) end
  elseif long < stay / 2 then
    redis.call('PEXPIRE', rounds, stay)
  end
  if redis.call('PTTL', calls) < stay / 2 then redis.call('PEXPIRE', calls, stay) end
end

-- may tries the commands that come last, at a key that is never there, so that a denied one is an error before anything has changed. It is the
-- first write: memory limits let it through, and a replica, whose data may be old, refuses it.
local function may(never)
  redis.call('PTTL', never)
  redis.call('PEXPIRE', never, 1)
  redis.call('DEL', never)
end

-- tally returns the count, 0 if there is none, the numbers round, open and gone, and until when the call `id` is remembered, or false. It brings
-- rounds in step with what clients of Redisson did meanwhile; what it writes lives for `stay` ms, or as long as the count. If a key holds
-- something else, or a command is denied, it returns nil and an answer for the caller.
local function tally(count, rounds, calls, id, now, stay)
  local value = redis.pcall('GET', count)
  local fields = redis.pcall('HMGET', rounds, 'round', 'open', 'gone')
  local known = redis.pcall('ZSCORE', calls, id)
  for _, reply in ipairs({value, fields, known}) do
    if failed(reply) then
      return nil, string.find(reply.err, 'WRONGTYPE', 1, true) and -4 or reply
    end
  end
  if value and (not string.find(value, '^%-?[1-9]%d*$') and value ~= '0' or #value > 16) then return nil, -4 end -- as Redisson's DECR reads it
  local left = math.max(tonumber(value or '0'), 0)
  local round, open, gone = tonumber(fields[1] or '0'), tonumber(fields[2] or '0'), tonumber(fields[3] or '0')
  local over = math.max(open, gone) >= round
  if left > 0 and over then
    round = math.max(now, round + 1)
  elseif left == 0 and (not over or value and round == 0) then
    round = math.max(round, 1)
    open = round
  else
    return left, round, open, gone, known
  end
  redis.call('HDEL', rounds, '') -- no such field: a first write that memory limits let through
  local denied = redis.pcall('HSET', rounds, 'round', string.format('%.0f', round), 'open', string.format('%.0f', open))
  if failed(denied) then return nil, denied end
  remember(count, rounds, calls, stay)
  return left, round, open, gone, known
end

-- carried_out returns how many of its n counts a call did before; false when nothing is known of it. Calls that do not count have one.
local function carried_out(known, n)
  return known and n - tonumber(known) % 1 * 1024
end

-- until_when returns until when a call is remembered that did not do `lacks` of its counts.
local function until_when(now, keep, lacks)
  return string.format('%.10f', math.floor(now / 1000) + keep + lacks / 1024)
end

-- note_answer remembers a call that did not do `lacks` of its counts if it is a repetition: the copy before it may come when it would do
-- something else.
local function note_answer(calls, id, lacks, now, keep, stay, repeated)
  if repeated ~= '1' then return end
  redis.call('ZREM', calls, '') -- no such member: a first write that memory limits let through
  redis.pcall('ZADD', calls, until_when(now, keep, lacks), id)
  if redis.call('PTTL', calls) < stay / 2 then redis.call('PEXPIRE', calls, stay) end
end

-- micros returns the server's time in µs.
local function micros()
  local time = redis.call('TIME')
  return time[1] * 1000000 + time[2]
end
