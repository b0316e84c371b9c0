-- include_latch: a countdown latch in the layout of Redisson's RCountDownLatch. It has no keys of its own.
-- include: reply
--
-- Redisson stores only the count: a string, which it deletes when the count reaches 0. A latch that was released
-- therefore looks like one that never existed. These scripts also store
--
-- rounds  round  the time at which the latch was created, in the server's µs; a later round has a larger one
--         open   the latest round whose count reached 0
--         gone   the latest round that was deleted, or the round before the first one in rounds
--         last   the call or the part with which the count last reached 0 in one of these scripts
-- calls   each call -> the server's time in ms until which it is remembered. If a delayed duplicate may still
--         come, this is 1/1024 ms more for each count that the call did not do. Calls of one process that are
--         counted together are one call here. A part with a name is also stored, as <round>:<name>
--
-- If Redisson creates a latch, the first of these scripts that reads it gives it a round.

-- extend_state keeps rounds and calls in Redis for `ttl` ms from now on, or for half of that at least. If the count has an
-- expiry, rounds expires a little before it, so that a count that expires is not mistaken for one that reached 0.
local function extend_state(count, rounds, calls, ttl)
  local ttl_left, left = redis.call('PTTL', rounds), redis.call('PTTL', count)
  if left >= 0 then -- mutant: border: an expiry is in the future
    left = left - 2 -- the clock may advance between two commands
    -- mutant: border 2: speed
    if ttl_left < math.max(left - 1000, 0) or ttl_left > left then redis.call('PEXPIRE', rounds, left) end
  elseif ttl_left < ttl / 2 then
    redis.call('PEXPIRE', rounds, ttl)
  end
  if redis.call('PTTL', calls) < ttl / 2 then redis.call('PEXPIRE', calls, ttl) end
end

-- next_round returns the number of the next round, and the latest round that was deleted. If rounds was lost, it is unknown
-- how the rounds before ended, and they count as deleted.
local function next_round(round, deleted, now)
  local number = math.max(now, round + 1)
  return number, round == 0 and number - 1 or deleted
end

-- check_permissions calls the commands that the script calls last, with a key that never exists. If one is denied, the
-- script ends before it has changed anything. This is the first write: it needs no memory, so full memory does not stop
-- the rest, and a replica, whose data may be old, rejects it.
local function check_permissions(never)
  redis.call('PTTL', never)
  redis.call('PEXPIRE', never, 1)
  redis.call('DEL', never)
end

-- read_latch returns the count, 0 if there is none; the numbers round, open and gone; and until when the call `id` is
-- remembered, or false. It first updates rounds if a client of Redisson has created or released the latch. What it writes
-- lives for `ttl` ms, or as long as the count. If a key has the wrong type, or a command is denied, it returns nil and the
-- reply for the caller.
local function read_latch(count, rounds, calls, id, now, ttl)
  local value = redis.pcall('GET', count)
  local fields = redis.pcall('HMGET', rounds, 'round', 'open', 'gone')
  local remembered = redis.pcall('ZSCORE', calls, id)
  for _, reply in ipairs({value, fields, remembered}) do
    if failed(reply) then
      return nil, string.find(reply.err, 'WRONGTYPE', 1, true) and -4 or reply
    end
  end
  if value and (not string.find(value, '^%-?[1-9]%d*$') and value ~= '0' or #value > 16) then return nil, -4 end -- Redisson's DECR accepts no other text
  local left = math.max(tonumber(value or '0'), 0)
  local round, opened, deleted = tonumber(fields[1] or '0'), tonumber(fields[2] or '0'), tonumber(fields[3] or '0')
  local ended = math.max(opened, deleted) >= round
  if left > 0 and ended then
    round, deleted = next_round(round, deleted, now)
  elseif left == 0 and (not ended or value and round == 0) then
    round = math.max(round, 1)
    opened = round
  else
    return left, round, opened, deleted, remembered
  end
  redis.call('HDEL', rounds, '') -- deletes nothing; after a write that needs no memory, full memory does not stop the rest
  local denied = redis.pcall('HSET', rounds, 'round', string.format('%.0f', round), 'open', string.format('%.0f', opened), 'gone', string.format('%.0f', deleted))
  if failed(denied) then return nil, denied end
  extend_state(count, rounds, calls, ttl)
  return left, round, opened, deleted, remembered
end

-- counted_before returns how many of its n counts a call did before; false if the call is not remembered. A call that does
-- not count has n = 1.
local function counted_before(remembered, n)
  return remembered and n - tonumber(remembered) % 1 * 1024
end

-- remembered_until returns the score of a call that did not do `uncounted` of its counts. retention is for how many ms it is
-- remembered.
local function remembered_until(now, retention, uncounted)
  return string.format('%.10f', math.floor(now / 1000) + retention + uncounted / 1024)
end

-- remember_repeat remembers a call that changed nothing, if it is a repetition. An earlier copy of it may still be delayed,
-- and would otherwise count when it arrives.
local function remember_repeat(calls, id, uncounted, now, retention, ttl, repeated)
  if repeated ~= '1' then return end
  redis.call('ZREM', calls, '') -- deletes nothing; after a write that needs no memory, full memory does not stop the rest
  redis.pcall('ZADD', calls, remembered_until(now, retention, uncounted), id)
  if redis.call('PTTL', calls) < ttl / 2 then redis.call('PEXPIRE', calls, ttl) end
end

-- micros returns the server's time in µs.
local function micros()
  local time = redis.call('TIME')
  return time[1] * 1000000 + time[2]
end
