-- rw_write_release: releases write holds, or ends the wait of a writer.
-- include: rw
--
-- KEYS[1] lock         hash    mode, owner -> read holds, owner:write -> write holds
-- KEYS[2] intent       string  "<owner> <since ms>" of a waiting writer
-- KEYS[3] reservation  string  "<owner> <since ms> <start ms>" of a waiting reader, and of the batch of readers
-- KEYS[4] never        string  a key that never exists (include_rw)
-- ARGV[1] owner    text    "<client uuid>:<number>"
-- ARGV[2] leave    count   the write holds that must remain; 0 releases all, and deletes the owner's intent
-- ARGV[3] prefix   text    what the keys of read leases begin with
-- ARGV[4] channel  text    the channel of the waiters
-- ARGV[5] publish  text    the command that notifies them: PUBLISH or SPUBLISH
--
-- Returns 1 if the owner now has `leave` write holds.
-- Returns -2 if the owner has no write hold: it was lost, the owner only waited, or an earlier copy of
-- this call released it.
-- Returns -3 if 50 dead readers were removed, and there are more readers to check: call the script again.
-- Returns -4 if the key is not a read/write lock; nothing was changed.
--
-- If readers remain, such as the owner itself, the lock becomes a read lock. With more than 50 readers,
-- the hash keeps its expiry. If a reader has a reservation, the batch of readers begins now, and lasts up
-- to 100 ms.
--
-- Safe to repeat: `leave` is the resulting hold count, and only the owner's hold changes.
local lock, intent, reservation, never = KEYS[1], KEYS[2], KEYS[3], KEYS[4]
local owner, leave, prefix = ARGV[1], tonumber(ARGV[2]), ARGV[3]
local channel, publish = ARGV[4], ARGV[5]

local function notify() redis.pcall(publish, channel, '1') end -- if publishing is denied, the release still counts

if leave == 0 and read_intent(intent) == owner then
  redis.pcall('DEL', intent)
  notify() -- readers may have waited behind it
end
local mode, answer = read_rw(lock)
if mode == nil then return answer end
local count = redis.call('HGET', lock, owner .. ':write')
redis.call('HDEL', lock, '') -- deletes nothing; a replica rejects it, and then full memory does not stop the rest
if not count then return -2 end

if leave > 0 then
  redis.call('HSET', lock, owner .. ':write', leave)
  return 1
end
local longest, complete, dead = 0, true, {}
-- mutant: always, border: speed
if redis.call('HLEN', lock) > 2 then longest, complete, dead = survey_readers(lock, prefix, nil, math.huge) end
if longest == 0 and not complete then
  remove_dead(lock, dead)
  return -3
end
if longest > 0 then
  if complete then redis.call('PEXPIRE', lock, longest) end -- from now on, the hash expires with the longest read lease
  redis.call('HSET', lock, 'mode', 'read')
  redis.call('HDEL', lock, owner .. ':write')
else
  redis.call('DEL', lock)
end
local reader, reader_since = read_reservation(reservation)
if reader ~= '' then
  local time = redis.call('TIME')
  write_reservation(reservation, reader, reader_since, time[1] * 1000 + math.floor(time[2] / 1000), 100)
end
notify()
return 1
