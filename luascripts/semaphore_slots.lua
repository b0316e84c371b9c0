-- semaphore_slots: numbers the permits of an owner, each with a fencing token.
-- include: time
--
-- KEYS[1] leases  zset   permit -> ms until which it is held
-- KEYS[2] slots   hash   number of a slot, from 0 on -> "<token> <permit>" of its latest holder
-- ARGV[i] id      text   each permit of the owner, a thousand at most
--
-- Returns a list: for each permit the number of its slot and its token, as text.
-- Returns -2 when the owner does not have all of its permits; nothing was done.
-- Returns -4 when a key holds something else; nothing was done.
--
-- The script reads the whole hash, which has a field for each slot that was ever in use: about a µs for each. A permit gets the lowest number that no permit has whose lease lies ahead. Its token is larger than that of every
-- earlier holder of that slot. Safe to repeat: a permit that has a slot keeps it, and its token.
local leases, slots = KEYS[1], KEYS[2]
local ids = {}
for i = 1, #ARGV do
  local id = ARGV[i]
  ids[i] = id
end

-- foreign returns the answer for the reply of a pcall that is an error.
local function foreign(reply)
  return string.find(reply.err, 'WRONGTYPE', 1, true) and -4 or reply
end

local now, time = clock()
local ahead = redis.pcall('ZMSCORE', leases, unpack(ids))
if ahead.err then return foreign(ahead) end
redis.call('ZREM', leases, '') -- no such member: a replica, whose data may be old, refuses it
for i = 1, #ids do
  if not ahead[i] or tonumber(ahead[i]) <= now then return -2 end
end
local stored = redis.pcall('HGETALL', slots)
if stored.err then return foreign(stored) end

local last, of, owners, numbers = {}, {}, {}, {}
for i = 1, #stored, 2 do
  local n, token = tonumber(stored[i]), string.match(stored[i + 1], '^(%d+) ')
  if not n or not token then return -4 end
  local id = string.sub(stored[i + 1], #token + 2)
  last[n], of[id] = tonumber(token), n
  owners[#owners + 1], numbers[#numbers + 1] = id, n
end
local taken = {}
for from = 1, #owners, 1000 do
  local to = math.min(from + 999, #owners)
  for i, score in ipairs(redis.call('ZMSCORE', leases, unpack(owners, from, to))) do
    if score and tonumber(score) > now then taken[numbers[from + i - 1]] = true end
  end
end

local micros = time[1] * 1000000 + time[2]
local replies, writes, n = {}, {}, 0
for _, id in ipairs(ids) do
  local slot = of[id]
  if not slot then
    while taken[n] do n = n + 1 end
    slot, taken[n] = n, true
    last[slot] = math.max(micros, (last[slot] or 0) + 1)
    writes[#writes + 1] = string.format('%.0f', slot)
    writes[#writes + 1] = string.format('%.0f ', last[slot]) .. id
  end
  replies[#replies + 1] = string.format('%.0f', slot)
  replies[#replies + 1] = string.format('%.0f', last[slot])
end
if #writes > 0 then redis.call('HSET', slots, unpack(writes)) end
return replies
