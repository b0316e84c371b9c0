-- rw_force: force-unlocks a read/write lock: removes the writer and all readers.
-- include: rw
--
-- KEYS[1] lock     hash    mode, owner -> read holds, owner:write -> write holds
-- KEYS[2] never    string  a key that never exists (include_rw)
-- ARGV[1] prefix   text  what the keys of read leases begin with
-- ARGV[2] channel  text  the channel of the waiters
-- ARGV[3] publish  text  the command that notifies them: PUBLISH or SPUBLISH
-- ARGV[4] readers  count 1 if it only removes readers; missing otherwise
--
-- Returns 1 if an owner held the lock, 0 if it was free or readers = 1 and a writer holds it.
-- Returns -3 if about 50 readers of a read lock were removed, and there are more: call the script again, with readers = 1.
-- Returns -4 if the key is not a read/write lock; nothing was changed.
--
-- Sent only once, because a second copy would remove an owner that acquired the lock in between. The calls
-- after -3 can do that, too, but only to a reader that entered while others were left.
local lock, never = KEYS[1], KEYS[2]
local prefix, channel, publish, readers = ARGV[1], ARGV[2], ARGV[3], ARGV[4]

local mode, answer = read_rw(lock)
if mode == nil then return answer end
redis.call('HDEL', lock, '') -- deletes nothing; a replica, whose data may be old, rejects it
if not mode or readers and mode == 'write' then return 0 end
local fields, cursor, stopped = {}, '0', false
repeat
  local page = redis.call('HSCAN', lock, cursor, 'COUNT', 50)
  cursor = page[1]
  stopped = each_reader(lock, prefix, page[2], function(owner, count)
    fields[#fields + 1] = owner
    delete_leases(prefix, owner, 1, count)
    return #fields == 50
  end)
until stopped or cursor == '0'
if stopped and mode == 'read' and not remove_dead(lock, fields) then return -3 end
redis.call('DEL', lock)
redis.pcall(publish, channel, '1')
return 1
