-- include_rw: what the scripts of the read/write lock share. It has no keys of its own.
--
-- Each hold of a reader has a key beside the hash, "<beside>:<owner>:rwlock_timeout:<n>",
-- whose expiry is the lease of that reader. The hash itself lives as long as the
-- longest of them. A field without such a key is of a reader who died.
--
-- While a slot moves between nodes of a cluster, a node has some of these keys, and
-- would take those that are elsewhere for the dead. So each script names a key that
-- never exists: a cluster answers TRYAGAIN when one of several keys is missing in
-- a slot that moves.

local function timeout(beside, owner, n)
  return beside .. ':' .. owner .. ':rwlock_timeout:' .. n
end

-- lives returns the ms that are left of an owner's read lease; 0 when there is none.
local function lives(lock, beside, owner, count)
  local most = 0
  for n = count, 1, -1 do
    local left = redis.call('PTTL', timeout(beside, owner, n))
    if left == -1 then left = math.max(redis.call('PTTL', lock), 1000) end -- persisted by hand
    most = math.max(most, left)
  end
  return most
end

-- readers calls f(owner, count, left) for each reader of the hash, dead ones too,
-- until f returns true. A small hash keeps the order in which they came; the last is
-- the first here, and has most of its lease left as a rule.
local function readers(lock, beside, f)
  local fields = redis.call('HGETALL', lock)
  for i = #fields - 1, 1, -2 do
    local owner, count = fields[i], tonumber(fields[i + 1])
    if owner ~= 'mode' and count and string.sub(owner, -6) ~= ':write' then
      if f(owner, count, lives(lock, beside, owner, count)) then return end
    end
  end
end

-- longest returns the ms that are left of the longest read lease but that of
-- except, 0 when no other reader is alive. It looks no further when it has found
-- one of at least enough.
local function longest(lock, beside, except, enough)
  local most = 0
  readers(lock, beside, function(owner, _, left)
    if owner ~= except then most = math.max(most, left) end
    return most >= enough
  end)
  return most
end

-- side returns the lock's mode, false when it is free, or an answer for the
-- caller: -4 when the key is not a read/write lock, or an error.
local function side(lock)
  local mode = redis.pcall('HGET', lock, 'mode')
  if type(mode) == 'table' then
    if string.find(mode.err, 'WRONGTYPE', 1, true) then return nil, -4 end
    return nil, mode
  end
  if mode == 'read' or mode == 'write' then return mode end
  if mode or redis.call('EXISTS', lock) == 1 then return nil, -4 end
  return false
end

-- wished returns the waiting writer whom readers let pass, and since when
-- (server's ms) it waits. A wish that never ends, made by hand, counts for nothing.
local function wished(wish)
  local text = redis.pcall('GET', wish)
  if type(text) ~= 'string' or redis.call('PTTL', wish) <= 0 then return nil end
  local owner, since = string.match(text, '^(.*) (%d+)$')
  return owner, tonumber(since)
end
