-- reentrant_release: an owner gives holds back; with the last, the lock goes to the next in line.
-- include: time, token, line
--
-- KEYS[1] lock      hash    owner -> hold count, and the line (include_line)
-- KEYS[2] register  string  the latest fencing token; only with fencing
-- ARGV[1] owner    text   "<client uuid>:<number>"
-- ARGV[2] leave    count  the hold count that must remain; 0 frees the lock
-- ARGV[3] channel  text   where waiters listen
-- ARGV[4] publish  text   the command that reaches them: PUBLISH or SPUBLISH
-- ARGV[5] counts   count  1 when the server counts all listeners of a channel
-- ARGV[6] last     text   the last token that the owner gave out
-- ARGV[7] spare    count  how many tokens more the register is raised by
-- ARGV[8] ours     text   the channel of all clients that know of the line; a client in it also listens at "<ours>:<client uuid>"
-- ARGV[9] heir     text   the owner that waits in the same process; this and the following arguments are missing if there is none
-- ARGV[10] offer   ms     the lease with which the lock is granted to the heir
-- ARGV[11] again   ms     the time after which the heir asks again
-- ARGV[12] keep    ms     how long its place in line lives without a question where the server cannot count listeners
--
-- Returns 1 when the owner holds `leave` times now, and with none left the lock is free
-- or another process has it.
-- Returns a string when the heir has the lock now: its fencing token.
-- Returns 2 when the lock is free, and the processes in line are to ask a little later.
-- Returns -2 when the owner holds nothing: it was lost, or an earlier copy of
-- this call freed it. Its place in line, if it has one, is given up.
-- Returns -4 when the key holds something else; nothing was done.
--
-- The first living process in line becomes the holder, with its offer for a lease. A
-- message to that process is the reason to ask, and the answer tells it that it holds
-- the lock. So a message that is lost or forged changes nothing, and no message
-- needs to be taken back. The heir's place is behind the others.
--
-- Listeners that never stand in line, as Redisson's, and callers of TryLock get only a
-- lock that is free. So a lock that is handed off is freed now and then, with a
-- message to all: after 64 grants and a second; after 4 grants when there are such
-- listeners; after 16 when that cannot be known; and never before each process in line
-- had a grant. All clients that know of the line
-- listen at `ours` too. The script counts them there, to tell them from the others, and publishes "aside"
-- there first: it asks them to wait a little, as they would always be the faster ones.
--
-- Safe to repeat, and it never touches another owner's field.
local lock, register = KEYS[1], KEYS[2]
local owner, leave = ARGV[1], ARGV[2]
local channel, publish, counts = ARGV[3], ARGV[4], ARGV[5] == '1'
local last, spare, ours = ARGV[6], ARGV[7], ARGV[8]
local heir, offer, again, keep = ARGV[9] or '', ARGV[10], ARGV[11], ARGV[12]

local found = redis.pcall('HMGET', lock, owner, 'leasehold_line')
if found.err then
  if string.find(found.err, 'WRONGTYPE', 1, true) then return -4 end
  return found
end
local count, line = found[1], legible(found[2] or '')
if not count then
  local rest = struck(line, owner)
  if rest ~= line then
    redis.call('HDEL', lock, 'leasehold_line') -- first, as memory limits let it through, and what follows it
    -- Only next to an owner: a key that is gone would come back without an expiry.
    if string.find(rest, ';', 1, true) and redis.call('HLEN', lock) > 0 then redis.call('HSET', lock, 'leasehold_line', rest) end
  end
  return -2
end
if not string.find(count, '^[0-9]+$') then return -4 end

if leave ~= '0' then
  if count ~= leave then
    redis.call('HDEL', lock, '') -- no such field: a first write that memory limits let through
    redis.call('HSET', lock, owner, leave)
  end
  return 1
end

-- others reports whether a client listens that does not stand in line; nil if that cannot
-- be known.
local function others()
  if not counts then return nil end
  local listeners = redis.pcall('PUBSUB', 'NUMSUB', channel, ours)
  if listeners.err then return nil end
  return tonumber(listeners[2]) > tonumber(listeners[4])
end

-- granted makes who the holder, with this line. It reports false, and does nothing, where
-- the right to PEXPIRE is missing: a lock without an end must not be granted.
local function granted(who, lease, line)
  redis.call('HSET', lock, who, 1, 'leasehold_line', line)
  if type(redis.pcall('PEXPIRE', lock, lease)) ~= 'table' then return true end
  redis.call('HDEL', lock, who, 'leasehold_line')
  return false
end

-- pass grants the lock to the next in line, and returns the answer of the script; nil if
-- the lock is to be freed.
local function pass(now, time)
  local before, since = string.match(line, '^(%d+) (%d+)|')
  local grants = (tonumber(before) or 0) + 1
  since = tonumber(since) or now
  local strangers, waiting = others(), standing(line)
  local most = strangers and 4 or strangers == nil and 16 or 64
  if grants > math.max(most, waiting) and (strangers ~= false or math.abs(now - since) >= 1000) then
    redis.pcall(publish, ours, 'aside')
    return nil, 2
  end

  local who, lease, rest = successor(line, heir, offer, ours, counts, now)
  if not who and heir ~= '' then who, lease = heir, offer end
  local sound, token = who ~= nil, nil
  if who == heir then sound, token = pcall(grown, register, time, last, spare) end -- a fault of the register must not undo a release
  if not sound then return nil, 1 end

  rest = string.format('%d %.0f|', grants, since) .. string.gsub(rest, '^[^|]*|', '', 1)
  if who ~= heir and heir ~= '' then rest = enlisted(rest, heir, offer, 0, tonumber(again), tonumber(keep), ours, counts, now) end
  if not granted(who, lease, rest) then return nil, 1 end
  redis.call('HDEL', lock, owner)
  if who == heir then return token end
  redis.pcall(publish, ours .. ':' .. client(who), '0')
  return 1
end

-- The owner's field goes last, and the key with it: in a slot that moves to another
-- node of a cluster, a key that is gone cannot be written any more.
local freed = 1
if heir ~= '' or found[2] then
  redis.call('HDEL', lock, 'leasehold_line') -- first, as memory limits let it through, and what follows it
  local answer, without = pass(clock())
  if answer then return answer end
  freed = without
end
redis.call('HDEL', lock, owner)
redis.pcall(publish, channel, '0') -- a hint: its refusal must not undo a release
return freed
