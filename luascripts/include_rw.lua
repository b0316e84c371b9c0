-- include_rw: functions of the scripts of the read/write lock. It has no keys of its own.
-- include: owner, linger
--
-- Each reader has its own lease: the longest TTL of its keys "<prefix>:<owner>:rwlock_timeout:<n>",
-- with n from 1 to its hold count. A reader of Redisson has one key for each hold. A reader of
-- leasehold has a single key, that of its latest hold, so that the cost of a call does not grow with
-- the hold count. With more than one hold, the value of that key is "all". The hash expires with the
-- longest lease. A field of the hash without such a key is that of a dead reader.
--
-- While a cluster slot is migrated, a node has only some of these keys, and a reader whose key is
-- on the other node would look dead. Each script therefore also names a key that never exists. If one
-- of several keys is missing in a slot that is being migrated, the cluster replies TRYAGAIN, and the
-- script does not run.
--
-- A waiting writer stores an intent, so that readers that arrive later wait behind it. A waiting reader
-- stores a reservation, so that at most one more writer enters before it. When that writer leaves, a
-- batch of readers begins: for 100 ms no writer enters, and readers that arrived before the batch began
-- ignore the intent.

-- lease_key returns the key with the lease of an owner's n-th hold.
local function lease_key(prefix, owner, n)
  return prefix .. ':' .. owner .. ':rwlock_timeout:' .. n
end

-- lease_left returns the remaining read lease of an owner in ms; 0 if there is none. If each hold has
-- its own key, it checks the latest 256.
local function lease_left(lock, prefix, owner, count)
  local longest = 0
  for n = count, math.max(count - 255, 1), -1 do
    local left = redis.call('PTTL', lease_key(prefix, owner, n))
    if left == -1 then left = math.max(redis.call('PTTL', lock), 1000) end -- an operator removed the expiry
    longest = math.max(longest, left)
    -- mutant: operand 1, operand 2, operand 3, operand 4, operand 5, border: speed
    if n == count and n > 1 and left > 0 and redis.pcall('GET', lease_key(prefix, owner, n)) == 'all' then break end
  end
  return longest
end

-- delete_leases deletes the keys of an owner's read leases from hold `to` down to hold `from`, until one
-- is missing. An owner of leasehold has one key. Of Redisson's it deletes at most 256, because the
-- server executes nothing else in the meantime; the others expire.
local function delete_leases(prefix, owner, from, to)
  for n = to, math.max(from, to - 255), -1 do
    if redis.pcall('DEL', lease_key(prefix, owner, n)) ~= 1 then return end
  end
end

-- set_lease stores one key for the lease of all `count` holds of an owner, which had `before` holds so
-- far. If the server denies that, it returns the error.
local function set_lease(prefix, owner, before, count, lease)
  local set = redis.pcall('SET', lease_key(prefix, owner, count), count > 1 and 'all' or 1, 'PX', lease)
  if set.err then return set end
  -- mutant: border: the numbers differ
  if before ~= count then delete_leases(prefix, owner, before > count and count + 1 or 1, before) end
end

-- each_reader calls f(owner, count, left) for each reader in this part of the hash, alive or dead, until
-- f returns true. It returns whether f did. A small hash keeps its fields in the order of arrival.
-- each_reader begins with the last one, which usually has the longest lease.
local function each_reader(lock, prefix, part, f)
  for i = #part - 1, 1, -2 do
    local owner, count = part[i], tonumber(part[i + 1])
    if count and string.sub(owner, -6) ~= ':write' then
      if f(owner, count, lease_left(lock, prefix, owner, count)) then return true end
    end
  end
  return false
end

-- survey_readers checks up to 50 readers except `except`; a limit, because the server executes nothing
-- else in the meantime. It returns the longest remaining lease in ms, 0 if none is alive; whether these
-- were all readers; and the dead ones. It stops early at a lease of at least `enough` ms.
local function survey_readers(lock, prefix, except, enough)
  local longest, checked, dead, cursor, stopped = 0, 0, {}, '0', false
  repeat
    local page = redis.call('HSCAN', lock, cursor, 'COUNT', 20)
    cursor = page[1]
    stopped = each_reader(lock, prefix, page[2], function(owner, _, left)
      if checked == 50 then return true end
      if owner ~= except then
        checked = checked + 1
        longest = math.max(longest, left)
        if left == 0 then dead[#dead + 1] = owner end
      end
      return longest >= enough -- mutant: never, border: speed
    end)
  until stopped or cursor == '0'
  return longest, not stopped, dead
end

-- remove_dead deletes the fields of dead readers. It returns whether only the mode remains.
local function remove_dead(lock, dead)
  if #dead > 0 then redis.call('HDEL', lock, unpack(dead)) end
  return redis.call('HLEN', lock) == 1
end

-- remove_some_dead deletes some dead readers of a hash with many fields, from a random part of it.
-- Otherwise fields of crashed processes would accumulate while other readers always hold the lock.
local function remove_some_dead(lock, prefix)
  if redis.call('HLEN', lock) <= 16 then return end -- mutant: border: speed
  local dead, checked = {}, 0
  each_reader(lock, prefix, redis.call('HSCAN', lock, redis.call('TIME')[2], 'COUNT', 10)[2], function(owner, _, left)
    if left == 0 then dead[#dead + 1] = owner end
    checked = checked + 1 -- mutant: removed: speed
    return checked == 50 -- mutant: never: speed
  end)
  remove_dead(lock, dead)
end

-- read_rw returns the mode of the lock, false if it is free, and the owner that writes. If the key is
-- not a read/write lock, or a command fails, it returns nil and the reply for the caller: -4 or an
-- error. A read/write lock has a mode and owners as fields. Of a large hash only some are checked.
local function read_rw(lock)
  local mode = redis.pcall('HGET', lock, 'mode')
  if type(mode) == 'table' then
    if string.find(mode.err, 'WRONGTYPE', 1, true) then return nil, -4 end
    return nil, mode
  end
  if not mode and redis.call('EXISTS', lock) == 0 then return false end -- mutant: operand 1: speed
  if mode ~= 'read' and mode ~= 'write' or redis.call('HLEN', lock) < 2 then return nil, -4 end
  local sample, writer = redis.call('HSCAN', lock, 0, 'COUNT', 8)[2], nil
  for i = 1, math.min(#sample, 32), 2 do
    local field = sample[i]
    local owner, is_writer = string.gsub(field, ':write$', '')
    if is_writer > 0 then writer = owner end
    if field ~= 'mode' and not (is_owner(owner) and tonumber(sample[i + 1])) then return nil, -4 end
  end
  return mode, writer
end

-- writer_passed is stored as the start of a batch that has not begun, when the one writer has entered
-- that may pass the reader with the reservation. That writer is still inside, or its lease has expired.
local function writer_passed() return 1 end

-- refused_by_writer returns the reply for an owner that waits for a writer: left, or {left, 0, wait} if
-- the writer holds the lock, and its client may keep it unused (include_linger). That client was notified,
-- so a TryLock retries for up to wait ms. waits is true if the owner waits.
local function refused_by_writer(lock, left, writer, owner, waits)
  local wait = writer and notify_keeper(lock, writer, owner, waits) or 0
  if wait > 0 then return {left, 0, wait} end
  return left
end

-- read_reservation returns the waiting reader that has the reservation, or ""; since when it waits;
-- when the batch began, 0 or writer_passed if it has not (server's ms); and the remaining ms of the key.
-- A key without an expiry, which no script creates, is ignored.
local function read_reservation(reservation)
  local text = redis.pcall('GET', reservation)
  local left = type(text) == 'string' and redis.call('PTTL', reservation) or 0
  if left <= 0 then return '', 0, 0, 0 end
  local owner, since, start = string.match(text, '^(.*) (%d+) (%d+)$')
  return owner or '', tonumber(since or 0), tonumber(start or 0), left -- mutant: operand 4: without an owner, since is not used
end

-- write_reservation stores the values that read_reservation returns. If the write fails, the reader only
-- waits without a reservation.
local function write_reservation(reservation, owner, since, start, left)
  redis.pcall('SET', reservation, string.format('%s %.0f %.0f', owner, since, start), 'PX', left)
end

-- read_intent returns the waiting writer that readers wait behind, and since when it waits (server's ms).
-- A key without an expiry, which no script creates, is ignored.
local function read_intent(intent)
  local text = redis.pcall('GET', intent)
  if type(text) ~= 'string' or redis.call('PTTL', intent) <= 0 then return nil end -- mutant: border: an expiry is in the future
  local owner, since = string.match(text, '^(.*) (%d+)$')
  return owner, tonumber(since)
end
