-- latch_down: decrements the count of a latch.
-- include: reply, latch
--
-- KEYS[1] count   string the count
-- KEYS[2] rounds  hash   round, open, gone, last (include_latch)
-- KEYS[3] calls   zset   counted call -> ms until which it is remembered
-- KEYS[4] never   string a key that never exists (include_fair)
-- ARGV[1] id      text   unique to the call
-- ARGV[2] part    text   the name of a part, which counts once in each round; '' if the call has none
-- ARGV[3] retention ms   how long the call is remembered
-- ARGV[4] ttl     ms     how long rounds and calls stay in Redis
-- ARGV[5] channel text   the channel of the waiters
-- ARGV[6] publish text   the command that notifies them: PUBLISH or SPUBLISH
-- ARGV[7] again   count  1 if an earlier copy of the call may still arrive
-- ARGV[8] n       count  by how much to decrement, up to 1000; 1 with a part
--
-- Returns {counted, left, round, open, gone} (include_latch). counted is how many of the n were counted, now or by an
-- earlier copy: fewer than n if the count reached 0. A part that another call has counted is counted, too. left is the count
-- now; for an earlier copy or a counted part, it is 0 only if that one reached 0, and otherwise at least 1.
-- Returns -4: a key has the wrong type; nothing was changed.
--
-- Safe to repeat while the call is remembered.
local count, rounds, calls, never = KEYS[1], KEYS[2], KEYS[3], KEYS[4]
local id, part, retention, ttl = ARGV[1], ARGV[2], tonumber(ARGV[3]), tonumber(ARGV[4])
local channel, publish, again, n = ARGV[5], ARGV[6], ARGV[7], tonumber(ARGV[8])

local now = micros()
local left, round, opened, deleted, remembered = read_latch(count, rounds, calls, id, now, ttl)
if not left then return round end
local counted_id = part ~= '' and string.format('%.0f', round) .. ':' .. part or id
local counted = counted_before(remembered, n)
if not counted and part ~= '' then counted = counted_before(redis.call('ZSCORE', calls, counted_id), 1) end -- mutant: operand 2: speed
if counted or left == 0 then
  redis.call('HDEL', rounds, '') -- deletes nothing; a replica, whose data may be old, rejects it
  counted = counted or 0
  remember_repeat(calls, id, n - counted, now, retention, ttl, again)
  -- Others may have counted since, but only the call that reached 0 receives 0.
  if counted > 0 then left = redis.call('HMGET', rounds, 'last')[1] == counted_id and 0 or math.max(left, 1) end
  return {counted, left, round, opened, deleted}
end

check_permissions(never)
local expired = redis.call('ZRANGEBYSCORE', calls, '-inf', string.format('%.0f', now / 1000), 'LIMIT', 0, 10)
redis.call('ZREM', calls, '', unpack(expired)) -- '' makes it run always: if ZREM is denied, the script fails before it has changed anything
counted = math.min(n, left)
local score = remembered_until(now, retention, n - counted)
redis.call('ZADD', calls, score, counted_id, score, id) -- the id of a part, too, so that no other copy of the call counts in a later round
left = left - counted
local denied
if left > 0 then
  denied = redis.pcall('SET', count, string.format('%.0f', left), 'KEEPTTL')
else
  opened = round
  denied = redis.pcall('HSET', rounds, 'open', string.format('%.0f', opened), 'last', counted_id)
  if type(denied) == 'number' then denied = redis.pcall('DEL', count) end
end
if failed(denied) then -- an error must mean that the call is not counted
  redis.call('ZREM', calls, counted_id, id)
  return denied
end
extend_state(count, rounds, calls, ttl)
if left == 0 then redis.pcall(publish, channel, '0') end
return {counted, left, round, opened, deleted}
