-- fair_acquire: an owner takes the lock if it is its turn, or stands in line for it.
--
-- KEYS[1] lock      hash   owner -> hold count
-- KEYS[2] queue     list   waiting owners, first come first
-- KEYS[3] timeouts  zset   waiting owner -> server's ms until which it counts as alive
-- KEYS[4] never     string never there (include_fair)
-- KEYS[5] register  string the latest fencing token; only with fencing
-- ARGV[1] owner     text   "<client uuid>:<number>"
-- ARGV[2] lease     ms     what the lock lives on without a renewal
-- ARGV[3] want      count  the hold count that must result; 1 for the first hold
-- ARGV[4] stay      ms     how long it keeps its place unheard; 0 does not queue
--
-- Returns a string when the owner holds `want` times now: the fencing token, or
-- "0" for a re-entry.
-- Returns n >= 0: another owner has it or is before us, and n ms are left of its
-- lease, or until it counts as dead. The owner is in the queue unless stay is 0.
-- Returns -1: another owner has it, and the key has no expiry.
-- Returns -2: a re-entry found no hold of this owner; it was lost.
-- Returns -4: the key holds something else; nothing was done.
--
-- Safe to repeat: who is in the queue keeps its place and is heard from.
local lock, queue, timeouts, never, register = KEYS[1], KEYS[2], KEYS[3], KEYS[4], KEYS[5]
local owner, lease, want, stay = ARGV[1], tonumber(ARGV[2]), tonumber(ARGV[3]), tonumber(ARGV[4])

local time = redis.call('TIME')
local now = time[1] * 1000 + math.floor(time[2] / 1000)

local fields = redis.pcall('HGETALL', lock)
if fields.err then
  if string.find(fields.err, 'WRONGTYPE', 1, true) then return -4 end
  return fields
end
local held = false
for i = 1, #fields, 2 do
  if fields[i] ~= 'leasehold_line' and not string.find(fields[i + 1], '^[0-9]+$') then return -4 end -- some other hash, or a read/write lock
  held = held or fields[i] == owner
end
if held then
  -- PEXPIRE before HSET: after a write that cannot grow memory, Redis lets the
  -- rest of the script through even when memory is full.
  redis.call('PEXPIRE', lock, math.max(redis.call('PTTL', lock), lease))
  redis.call('HSET', lock, owner, want)
  if want > 1 then return '0' end
  return grown(register, time)
end
if want > 1 then return -2 end

local left = redis.call('PTTL', lock)
local first, deadline = head(queue, timeouts, now)
if #fields == 0 and (not first or first == owner) then
  local token = grown(register, time)
  redis.call('HSET', lock, owner, 1) -- refused here when memory is full: nothing is left behind
  local denied = redis.pcall('PEXPIRE', lock, lease)
  if type(denied) ~= 'table' then denied = first and dequeue(queue, timeouts, owner) end
  if denied then
    redis.call('DEL', lock) -- an error means that we do not have it
    return denied
  end
  return token
end

if stay > 0 then
  local members
  local queued = redis.call('ZSCORE', timeouts, owner)
  if redis.call('LLEN', queue) ~= redis.call('ZCARD', timeouts) then
    -- Somebody deleted one of the two: look at the list itself.
    members, queued = redis.call('LRANGE', queue, 0, -1), false
    for _, member in ipairs(members) do queued = queued or member == owner end
  end
  local ahead = stay
  local last = redis.call('LINDEX', queue, -1)
  local before = last and tonumber(redis.call('ZSCORE', timeouts, last) or nil)
  if queued or last and not (ours(last) and before and before > now and before <= now + stay) then
    ahead = patience(members or redis.call('LRANGE', queue, 0, -1), owner, stay)
  end
  if queued then
    redis.call('ZREM', timeouts, '') -- nobody: a first write that memory limits let pass
  else
    redis.call('RPUSH', queue, owner)
  end
  local denied = redis.pcall('ZADD', timeouts, now + ahead, owner)
  if type(denied) ~= 'table' then denied = outlive(queue, timeouts, now) end
  if denied then
    if not queued then dequeue(queue, timeouts, owner) end
    return denied
  end
end
if #fields > 0 then return left end
return math.max(deadline - now, 1)
