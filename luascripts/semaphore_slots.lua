-- semaphore_slots: assigns a slot number and a fencing token to each permit of an owner.
-- include: time
--
-- KEYS[1] leases  zset   held permit -> ms at which its lease expires
-- KEYS[2] slots   hash   slot number, from 0 -> "<token> <permit>" of its latest holder
-- ARGV[i] id      text   the ids of the owner's permits, up to 1000
--
-- Returns a list: for each permit its slot number and its token, as text.
-- Returns -2 if the owner does not hold all of its permits; nothing was changed.
-- Returns -4 if a key has the wrong type; nothing was changed.
--
-- A permit gets the lowest number that no other permit has. An expired permit keeps its number until it is free
-- again, because its owner can renew it if the server's clock was set forward. The token is larger than that of
-- every earlier holder of that slot. The script reads the whole hash, which has a field for each slot that was ever
-- in use: about one µs for each.
--
-- Safe to repeat: a permit that has a slot keeps it, and its token.
local leases, slots = KEYS[1], KEYS[2]
local ids = {}
for i = 1, #ARGV do
  local id = ARGV[i]
  ids[i] = id
end

-- foreign returns the reply of the script for an error of redis.pcall.
local function foreign(reply)
  return string.find(reply.err, 'WRONGTYPE', 1, true) and -4 or reply
end

local now, time = clock()
local expiries = redis.pcall('ZMSCORE', leases, unpack(ids))
if expiries.err then return foreign(expiries) end
redis.call('ZREM', leases, '') -- deletes nothing; a replica, whose data may be old, rejects it
for i = 1, #ids do
  if not expiries[i] or tonumber(expiries[i]) <= now then return -2 end
end
local stored = redis.pcall('HGETALL', slots)
if stored.err then return foreign(stored) end

local last_token, slot_of, owners, numbers = {}, {}, {}, {}
for i = 1, #stored, 2 do
  local n, token = tonumber(stored[i]), string.match(stored[i + 1], '^(%d+) ')
  if not n or not token then return -4 end
  local id = string.sub(stored[i + 1], #token + 2)
  last_token[n], slot_of[id] = tonumber(token), n
  owners[#owners + 1], numbers[#numbers + 1] = id, n
end
local used = {}
for from = 1, #owners, 1000 do
  local to = math.min(from + 999, #owners)
  for i, score in ipairs(redis.call('ZMSCORE', leases, unpack(owners, from, to))) do
    if score then used[numbers[from + i - 1]] = true end
  end
end

local micros = time[1] * 1000000 + time[2]
local replies, writes, n = {}, {}, 0
for _, id in ipairs(ids) do
  local slot = slot_of[id]
  if not slot then
    while used[n] do n = n + 1 end
    slot, used[n] = n, true
    last_token[slot] = math.max(micros, (last_token[slot] or 0) + 1)
    writes[#writes + 1] = string.format('%.0f', slot)
    writes[#writes + 1] = string.format('%.0f ', last_token[slot]) .. id
  end
  replies[#replies + 1] = string.format('%.0f', slot)
  replies[#replies + 1] = string.format('%.0f', last_token[slot])
end
if #writes > 0 then redis.call('HSET', slots, unpack(writes)) end
return replies
