-- reentrant_acquire_all: owners take several locks at once, all or none.
--
-- KEYS[i]     lock   hash  owner -> hold count, and the line (include_line); all in one slot
-- ARGV[2*i-1] owner  text  "<client uuid>:<number>", who takes KEYS[i]
-- ARGV[2*i]   lease  ms    what KEYS[i] lives on without a renewal
--
-- Returns a string when each owner holds its lock once now: the fencing token, the
-- same for all.
-- Returns {i, n}: KEYS[i] is another's, n ms are left of its lease (-1 no expiry),
-- or it holds something else (-4). Nothing was done.
--
-- Safe to repeat: what is held by its owner already is counted as taken.
local time = redis.call('TIME')
local owners, leases = {}, {}
for i, lock in ipairs(KEYS) do
  local owner, lease = ARGV[2 * i - 1], tonumber(ARGV[2 * i])
  owners[i], leases[i] = owner, lease
  local fields = redis.pcall('HGETALL', lock)
  if fields.err then
    if string.find(fields.err, 'WRONGTYPE', 1, true) then return {i, -4} end
    return fields
  end
  local free = #fields == 0
  for j = 1, #fields, 2 do
    if fields[j] ~= 'leasehold_line' and not string.find(fields[j + 1], '^[0-9]+$') then return {i, -4} end -- some other hash, or a read/write lock
    free = free or fields[j] == owner
  end
  if not free then return {i, redis.call('PTTL', lock)} end
end
local taken = {}
for i, lock in ipairs(KEYS) do
  taken[i] = lock
  local done = redis.pcall('HSET', lock, owners[i], 1) -- the first is refused when memory is full
  if type(done) ~= 'table' then done = redis.pcall('PEXPIRE', lock, leases[i]) end
  if type(done) == 'table' then
    for _, other in ipairs(taken) do redis.pcall('DEL', other) end -- without the right to do both, none is taken
    return done
  end
end
return grown(nil, time)
