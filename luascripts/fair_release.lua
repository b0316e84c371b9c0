-- fair_release: an owner gives holds back, or leaves the queue.
--
-- KEYS[1] lock      hash   owner -> hold count, and the line of a plain lock of that name (include_line)
-- KEYS[2] queue     list   waiting owners, first come first
-- KEYS[3] timeouts  zset   waiting owner -> server's ms until which it counts as alive
-- KEYS[4] never     string never there (include_fair)
-- ARGV[1] owner     text   "<client uuid>:<number>"
-- ARGV[2] leave     count  the hold count that must remain; 0 frees the lock and the place in the queue
-- ARGV[3] channel   text   where an owner listens is "<channel>:<owner>"
-- ARGV[4] publish   text   the command that reaches it: PUBLISH or SPUBLISH
--
-- Returns 1 when the owner holds `leave` times now.
-- Returns -2 when the owner holds nothing: it was lost, it only waited, or an
-- earlier copy of this call freed it.
-- Returns -4 when the key holds something else; nothing was done.
--
-- Whenever the lock is free at the end, the first of the queue who is alive is
-- told. Safe to repeat, and it never touches another owner's field.
local lock, queue, timeouts, never = KEYS[1], KEYS[2], KEYS[3], KEYS[4]
local owner, leave = ARGV[1], tonumber(ARGV[2])
local channel, publish = ARGV[3], ARGV[4]

local count = redis.pcall('HGET', lock, owner)
if type(count) == 'table' then
  if string.find(count.err, 'WRONGTYPE', 1, true) then return -4 end
  return count
end
if count and not string.find(count, '^[0-9]+$') then return -4 end

if leave > 0 then
  if not count then return -2 end
  if tonumber(count) ~= leave then
    redis.call('HDEL', lock, '') -- no such field: a first write that memory limits let pass
    redis.call('HSET', lock, owner, leave)
  end
  return 1
end

local time = redis.call('TIME')
local now = time[1] * 1000 + math.floor(time[2] / 1000)
local free = redis.call('EXISTS', lock) == 0
if count then
  local fields = redis.call('HGETALL', lock)
  free = true
  for i = 1, #fields, 2 do free = free and (fields[i] == owner or fields[i] == 'leasehold_line') end
end
local denied = dequeue(queue, timeouts, owner)
if denied then return denied end
local first = free and head(queue, timeouts, now)
redis.call('HDEL', lock, owner, free and 'leasehold_line' or owner) -- the last field takes the key with it
if first then redis.pcall(publish, channel .. ':' .. first, '0') end -- a hint: being refused it must not undo a release
if count then return 1 end
return -2
