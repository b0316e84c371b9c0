-- fair_release: an owner gives holds back, or leaves the queue.
-- include: time, plain, fair
--
-- KEYS[1] lock      hash   owner -> hold count, and the line of a plain lock of that name (include_line)
-- KEYS[2] queue     list   waiting owners, in the order of their arrival
-- KEYS[3] timeouts  zset   waiting owner -> server's ms until which it counts as alive
-- KEYS[4] never     string never there (include_fair)
-- ARGV[1] owner     text   "<client uuid>:<number>"
-- ARGV[2] leave     count  the hold count that must remain; 0 frees the lock and the place in the queue
-- ARGV[3] channel   text   the channel of an owner begins with it (include_fair)
-- ARGV[4] publish   text   the command that reaches it: PUBLISH or SPUBLISH
--
-- Returns {1, more} when the owner holds `leave` times now.
-- Returns {-2, more} when the owner holds nothing: it was lost, it only waited, or an
-- earlier copy of this call freed it.
-- Returns {-4, 0} when the key holds something else; only the place in the queue is given up.
--
-- When the lock is free at the end, the first living owner of the queue is told. If
-- there are more than a hundred dead before it, more is 1: then the
-- same call again goes on looking. Safe to repeat, and it never touches another owner's
-- field.
local lock, queue, timeouts, never = KEYS[1], KEYS[2], KEYS[3], KEYS[4]
local owner, leave = ARGV[1], tonumber(ARGV[2])
local channel, publish = ARGV[3], ARGV[4]

local fields, answer = plain(lock)
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
  if not count then return {-2, 0} end
  if tonumber(count) ~= leave then
    redis.call('HDEL', lock, '') -- no such field: a first write that memory limits let through
    redis.call('HSET', lock, owner, leave)
  end
  return {1, 0}
end

local denied = dequeue(queue, timeouts, owner)
if denied then return denied end
if not fields then return {-4, 0} end
local first, more
if free then first, more = head(queue, timeouts, clock()) end
redis.call('HDEL', lock, owner, free and 'leasehold_line' or owner) -- the last field takes the key with it
if first then tell(channel, publish, first) end
return {count and 1 or -2, more and 1 or 0}
