-- include_rw: what the scripts of the read/write lock share. It has no keys of its own.
-- include: owner, linger
--
-- The lease of a reader is the longest of its keys "<beside>:<owner>:rwlock_timeout:<n>", n
-- from 1 to the number of its holds. A reader of Redisson has one for each hold. Ours has a
-- single one, that of its latest hold, so that a call takes the same work however many holds
-- there are; with more than one hold its value is "all". The hash itself lives as long as
-- the longest lease. A field without such a key belongs to a dead reader.
--
-- While a slot moves between nodes of a cluster, a node has only some of these keys, and
-- would take readers whose keys are elsewhere for dead. So each script names a key that
-- never exists: a cluster answers TRYAGAIN when one of several keys is missing in
-- a slot that moves.

local function timeout(beside, owner, n)
  return beside .. ':' .. owner .. ':rwlock_timeout:' .. n
end

-- lives returns the remaining ms of an owner's read lease; 0 when there is none. Of
-- very many holds with keys of their own it checks the latest 256.
local function lives(lock, beside, owner, count)
  local most = 0
  for n = count, math.max(count - 255, 1), -1 do
    local left = redis.call('PTTL', timeout(beside, owner, n))
    if left == -1 then left = math.max(redis.call('PTTL', lock), 1000) end -- persisted by hand
    most = math.max(most, left)
    -- mutant: operand 1, operand 2, operand 3, operand 4, operand 5, border: speed
    if n == count and n > 1 and left > 0 and redis.pcall('GET', timeout(beside, owner, n)) == 'all' then break end
  end
  return most
end

-- unlease deletes the keys of an owner's read leases from hold `to` down to hold `from`, until one is missing: one key of
-- ours. Of a reader of Redisson it deletes at most 256, because the server does nothing else in the meantime; the others expire.
local function unlease(beside, owner, from, to)
  for n = to, math.max(from, to - 255), -1 do
    if redis.pcall('DEL', timeout(beside, owner, n)) ~= 1 then return end
  end
end

-- leased gives an owner, which has read `before` times so far, one key for the lease of all of its `count` holds. It
-- returns the error if the server denies that.
local function leased(beside, owner, before, count, lease)
  local set = redis.pcall('SET', timeout(beside, owner, count), count > 1 and 'all' or 1, 'PX', lease)
  if set.err then return set end
  -- mutant: border: the numbers differ
  if before ~= count then unlease(beside, owner, before > count and count + 1 or 1, before) end
end

-- readers calls f(owner, count, left) for each reader in this part of the hash, also for dead
-- ones, until f returns true; it reports whether f did. A small hash keeps the order of
-- arrival; the last reader comes first here, as it has most of its lease left as a rule.
local function readers(lock, beside, part, f)
  for i = #part - 1, 1, -2 do
    local owner, count = part[i], tonumber(part[i + 1])
    if count and string.sub(owner, -6) ~= ':write' then
      if f(owner, count, lives(lock, beside, owner, count)) then return true end
    end
  end
  return false
end

-- survey looks at up to fifty readers other than except, as the server stands still meanwhile.
-- It returns the ms that are left of the longest lease among them, 0 when none is alive; whether
-- these were all; and the dead among them. It stops when it has found a lease of
-- at least enough.
local function survey(lock, beside, except, enough)
  local most, seen, dead, cursor, stopped = 0, 0, {}, '0', false
  repeat
    local page = redis.call('HSCAN', lock, cursor, 'COUNT', 20)
    cursor = page[1]
    stopped = readers(lock, beside, page[2], function(owner, _, left)
      if seen == 50 then return true end
      if owner ~= except then
        seen = seen + 1
        most = math.max(most, left)
        if left == 0 then dead[#dead + 1] = owner end
      end
      return most >= enough -- mutant: never, border: speed
    end)
  until stopped or cursor == '0'
  return most, not stopped, dead
end

-- bury removes the fields of dead readers, and reports whether there were no others.
local function bury(lock, dead)
  if #dead > 0 then redis.call('HDEL', lock, unpack(dead)) end
  return redis.call('HLEN', lock) == 1
end

-- prune removes some dead readers of a hash with many fields, at any place in it, so
-- that the fields of crashed processes go while others read without a gap.
local function prune(lock, beside)
  if redis.call('HLEN', lock) <= 16 then return end -- mutant: border: speed
  local dead, seen = {}, 0
  readers(lock, beside, redis.call('HSCAN', lock, redis.call('TIME')[2], 'COUNT', 10)[2], function(owner, _, left)
    if left == 0 then dead[#dead + 1] = owner end
    seen = seen + 1 -- mutant: removed: speed
    return seen == 50 -- mutant: never: speed
  end)
  bury(lock, dead)
end

-- side returns the lock's mode, false when it is free, and the owner that writes; or nil and an answer for the
-- caller: -4 when the key is not a read/write lock, or an error. A lock has a mode and
-- owners. Of a large hash it looks at some fields.
local function side(lock)
  local mode = redis.pcall('HGET', lock, 'mode')
  if type(mode) == 'table' then
    if string.find(mode.err, 'WRONGTYPE', 1, true) then return nil, -4 end
    return nil, mode
  end
  if not mode and redis.call('EXISTS', lock) == 0 then return false end -- mutant: operand 1: speed
  if mode ~= 'read' and mode ~= 'write' or redis.call('HLEN', lock) < 2 then return nil, -4 end
  local some, writer = redis.call('HSCAN', lock, 0, 'COUNT', 8)[2], nil
  for i = 1, math.min(#some, 32), 2 do
    local field = some[i]
    local owner, writes = string.gsub(field, ':write$', '')
    if writes > 0 then writer = owner end
    if field ~= 'mode' and not (is_owner(owner) and tonumber(some[i + 1])) then return nil, -4 end
  end
  return mode, writer
end

-- one_passed stands for the beginning of a turn that has not begun, when a writer has passed its
-- reader: that writer is inside, or its lease has ended.
local function one_passed() return 1 end

-- busy returns the answer to an owner that a writer keeps out: left; or {left, 0, wait} if the client of that
-- writer may keep the lock although no owner uses it. It was told (include_linger), and an owner that does not
-- wait asks again for wait ms.
local function busy(lock, left, writer, owner, waits)
  local wait = writer and notify_keeper(lock, writer, owner, waits) or 0
  if wait > 0 then return {left, 0, wait} end
  return left
end

-- turned returns the reader that waits for its turn, "" if there is none; since when it
-- has waited; when the current turn began, 0 or one_passed if none is on (server's ms); and the ms
-- for which the key lives. A turn that never ends, made by hand, counts for nothing.
local function turned(turn)
  local text = redis.pcall('GET', turn)
  local left = type(text) == 'string' and redis.call('PTTL', turn) or 0
  if left <= 0 then return '', 0, 0, 0 end
  local owner, since, start = string.match(text, '^(.*) (%d+) (%d+)$')
  return owner or '', tonumber(since or 0), tonumber(start or 0), left -- mutant: operand 4: without an owner, since is not used
end

-- turns sets what turned returns. A refusal of the write changes nothing for the caller.
local function turns(turn, owner, since, start, left)
  redis.pcall('SET', turn, string.format('%s %.0f %.0f', owner, since, start), 'PX', left)
end

-- wished returns the waiting writer that readers wait behind, and since when
-- (server's ms) it has waited. A wish that never ends, made by hand, counts for nothing.
local function wished(wish)
  local text = redis.pcall('GET', wish)
  if type(text) ~= 'string' or redis.call('PTTL', wish) <= 0 then return nil end -- mutant: border: an expiry is in the future
  local owner, since = string.match(text, '^(.*) (%d+)$')
  return owner, tonumber(since)
end
