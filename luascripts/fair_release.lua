-- fair_release: an owner gives holds back, or leaves the queue.
-- include: time, token, plain, fair
--
-- KEYS[1] lock      hash   owner -> hold count, and the queue of a plain lock of that name (include_queue)
-- KEYS[2] queue     list   waiting owners, in the order of their arrival
-- KEYS[3] timeouts  zset   waiting owner -> server's ms until which it counts as alive
-- KEYS[4] never     string never there (include_fair)
-- KEYS[5] counter   string the highest fencing token; only with fencing
-- ARGV[1] owner     text   "<client uuid>:<number>"
-- ARGV[2] leave     count  the hold count that must remain; 0 frees the lock and the place in the queue
-- ARGV[3] channel   text   the channel of an owner begins with it (include_fair)
-- ARGV[4] publish   text   the command that reaches it: PUBLISH or SPUBLISH
-- ARGV[5] last      text   the last token that the owner gave out
-- ARGV[6] spare     count  how many tokens more the register is raised by
-- ARGV[7] heir      text   the owner of the same client that gets the lock if it is the first in the queue; "" for none
-- ARGV[8] lease     ms     what the lock lives on without a renewal of the heir
-- ARGV[i] served    text   owners that have had the lock since, as the client passed it on to them: they leave the queue
--
-- Returns {1, more} when the owner holds `leave` times now.
-- Returns {1, 0, token, numbers} when the heir has the lock now: its fencing token, and the
-- next owners in the queue, as fair_acquire tells them.
-- Returns {-2, more} when the owner holds nothing: it was lost, it only waited, or an
-- earlier copy of this call freed it.
-- Returns {-4, 0} when the key holds something else; only the place in the queue is given up.
--
-- When the lock is free, the first living owner of the queue is next. If it is the heir, it
-- has the lock at once, as its process reads the answer. Any other is told; it takes the lock
-- by its own question. So no message decides who has the lock. If
-- there are more than a hundred dead before it, more is 1: then the
-- same call again goes on looking. Safe to repeat, and it never touches another owner's
-- field.
local lock, queue, timeouts, never, counter = KEYS[1], KEYS[2], KEYS[3], KEYS[4], KEYS[5]
local owner, leave = ARGV[1], tonumber(ARGV[2])
local channel, publish = ARGV[3], ARGV[4]
local last, spare, heir, lease = ARGV[5], ARGV[6], ARGV[7], ARGV[8]

local fields, answer = read_plain(lock)
if not fields and answer ~= -4 then return answer end
local count, free = false, true
for i = 1, #(fields or {}), 2 do
  if fields[i] == owner then
    count = fields[i + 1]
  elseif fields[i] ~= 'leasehold_line' then
    free = false
  end
end

if leave > 0 then
  if not fields then return {-4, 0} end
  redis.call('HDEL', lock, '') -- no such field: a first write that memory limits let through, and a replica refuses
  if not count then return {-2, 0} end
  -- mutant: always: speed
  if tonumber(count) ~= leave then redis.call('HSET', lock, owner, leave) end
  return {1, 0}
end

local leaving = {owner}
for i = 9, #ARGV do
  local served = ARGV[i]
  leaving[#leaving + 1] = served
end
local denied = dequeue(queue, timeouts, leaving)
if denied then return denied end
if not fields then return {-4, 0} end

local first, more, time
if free then
  local now
  now, time = clock()
  first, more = head(queue, timeouts, now)
end
if count and first == heir then
  local sound, token = pcall(next_token, counter, time, last, spare) -- a fault of the register must not undo a release
  if sound then
    redis.call('HSET', lock, heir, 1)
    -- Without the right to PEXPIRE the lock would never end.
    if type(redis.pcall('PEXPIRE', lock, lease)) ~= 'table' and not dequeue(queue, timeouts, {heir}) then
      redis.call('HDEL', lock, owner, 'leasehold_line')
      return {1, 0, token, following(queue, heir)}
    end
    redis.call('HDEL', lock, heir)
  end
end
redis.call('HDEL', lock, owner, free and 'leasehold_line' or owner) -- the last field takes the key with it
if first then tell(channel, publish, first) end
return {count and 1 or -2, more and 1 or 0} -- mutant: operand 7: a reply has true as 1
