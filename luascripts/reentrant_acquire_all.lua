-- reentrant_acquire_all: owners take several locks at once, all or none.
-- include: token, plain
--
-- KEYS[i]     lock   hash  owner -> hold count, and the line (include_line); all in one slot
-- ARGV[2*i-1] owner  text  "<client uuid>:<number>", which takes KEYS[i]
-- ARGV[2*i]   lease  ms    how long KEYS[i] lives without a renewal
--
-- Returns a string when each owner holds its lock once now: the fencing token, the
-- same for all.
-- Returns {i, n, holder}: another owner has KEYS[i], and n ms are left of its lease (-1 no
-- expiry). Nothing was done.
-- Returns {i, -4}: KEYS[i] holds something else. Nothing was done.
--
-- Safe to repeat: a lock that its owner holds already counts as taken, also when
-- memory is full, and its lease is never shortened.
local time = redis.call('TIME')
local owners, leases, held = {}, {}, {}
for i, lock in ipairs(KEYS) do
  local owner, lease = ARGV[2 * i - 1], tonumber(ARGV[2 * i])
  owners[i], leases[i] = owner, lease
  local fields, answer = plain(lock, false)
  if not fields then
    if answer == -4 then return {i, -4} end
    return answer
  end
  local holder
  for j = 1, #fields, 2 do
    if fields[j] ~= 'leasehold_line' then holder = fields[j] end
  end
  if holder and holder ~= owner then return {i, redis.call('PTTL', lock), holder} end
  held[i] = holder ~= nil
end

-- take makes its owner hold the i-th lock, and returns an error if that is denied.
local function take(lock, i)
  local lease, done = leases[i], nil
  if held[i] then
    -- PEXPIRE before HSET: after a write that cannot grow memory, Redis lets the
    -- rest of the script through even when memory is full.
    done = redis.pcall('PEXPIRE', lock, math.max(redis.call('PTTL', lock), lease))
    if type(done) ~= 'table' then done = redis.pcall('HSET', lock, owners[i], 1) end
  else
    done = redis.pcall('HSET', lock, owners[i], 1)
    if type(done) ~= 'table' then done = redis.pcall('PEXPIRE', lock, lease) end
  end
  if type(done) == 'table' then return done end
end

-- Locks that are held already come first, so that a full memory lets the rest through.
for i, lock in ipairs(KEYS) do
  local denied = held[i] and take(lock, i)
  if denied then return denied end
end
for i, lock in ipairs(KEYS) do
  local denied = not held[i] and take(lock, i) -- mutant: operand 1, always: speed
  if denied then
    for j, lock in ipairs(KEYS) do
      if j <= i and not held[j] then redis.pcall('DEL', lock) end -- without the right to do both, none is taken
    end
    return denied
  end
end
return grown(nil, time)
