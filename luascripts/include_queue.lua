-- include_queue: the queue of processes that wait for a plain lock. It has no keys of its own.
--
-- The queue is the value of one field in the hash of the lock, leasehold_line. It therefore expires
-- and migrates with the lock, and needs no further key and no further permission:
--
--   <grants> <held_since>|<owner> <offer> <since> <retry_at> <deadline>;<owner> …
--
-- grants counts the hand-offs since the lock was last free, at the time <held_since>. A zero in front
-- of that number is a mark: a caller that is not in the queue was refused since then. That is a TryLock,
-- or a process that found the queue full. Earlier versions do not know the mark. They read the same
-- number, and may drop the zero.
--
-- Each entry is a waiting process: the owner string under which it will hold the lock, and the lease
-- in ms with which a release grants the lock to it. The other three numbers say when the process
-- counts as alive. All times are the server's, in ms:
--
--   0 0 0               While its client is subscribed to its own channel (queue_channel).
--   0 0 <deadline>      Until the deadline, because the server cannot count subscribers.
--   <since> <retry_at> <deadline>
--                       Until the deadline. The process receives no messages. It has been waiting
--                       since <since>, and retries at <retry_at>.
--
-- A process writes its entry when it starts to wait, and later only if the entry has to change. A
-- queue in which nothing changes therefore causes no writes for the AOF and the replicas.
--
-- Redisson's scripts check their own owner's field, and ignore the queue. When an owner of Redisson
-- releases the lock, it deletes the whole hash, and its message makes our waiters retry.

-- max_entries returns the maximum number of entries. A process that finds the queue full marks it,
-- and retries later.
local function max_entries() return 64 end

-- valid_queue returns text if our scripts may have written it, otherwise '', so that it is replaced.
-- It does not parse a text that is too long.
local function valid_queue(text)
  if #text > 32768 or not string.find(text, '^%d+ %d+|') then return '' end
  return text
end

-- client returns the client of an owner: the owner string up to the colon.
local function client(owner)
  return string.match(owner, '^(.*):')
end

-- entries iterates over a queue: the owner, the offer, the three numbers, and the first and last index
-- of the entry. It stops after the maximum number of entries, and at text that is not an entry, which
-- our scripts did not write.
local function entries(queue)
  local at, n = (string.find(queue, '|', 1, true) or 0) + 1, 0
  return function()
    local first, last, owner, offer, since, retry_at, deadline = string.find(queue, '^([%x%-]+:%d+) (%d+) (%d+) (%d+) (%d+);', at)
    if not first or n == max_entries() then return nil end
    at, n = last + 1, n + 1
    return owner, offer, tonumber(since), tonumber(retry_at), tonumber(deadline), first, last
  end
end

-- entry_text returns the text of one entry.
local function entry_text(owner, offer, since, retry_at, deadline)
  return string.format('%s %s %.0f %.0f %.0f;', owner, offer, since, retry_at, deadline)
end

-- queue_length returns the number of entries.
local function queue_length(queue)
  local _, n = string.gsub(queue, ';', '')
  return n
end

-- reachable reports for each owner whether its client is subscribed to its own channel, and so
-- receives messages. It returns nil if that is unknown: the server does not count all subscribers
-- (counts is false), or PUBSUB is denied.
local function reachable(channel, counts, owners)
  if not counts then return nil end
  local channels = {}
  for i, owner in ipairs(owners) do channels[i] = channel .. ':' .. client(owner) end
  local reply = redis.pcall('PUBSUB', 'NUMSUB', unpack(channels))
  if reply.err then return nil end
  local reached = {}
  for i = 1, #owners do reached[i] = tonumber(reply[2 * i]) > 0 end
  return reached
end

-- without_dead returns the queue without the entries of dead processes, and its length.
local function without_dead(queue, channel, counts, now)
  local owners, deadlines, texts = {}, {}, {}
  for owner, _, _, _, deadline, first, last in entries(queue) do
    local n = #owners + 1
    owners[n], deadlines[n], texts[n] = owner, deadline, string.sub(queue, first, last)
  end
  local reached, rest = reachable(channel, counts, owners), {}
  for i, deadline in ipairs(deadlines) do
    if deadline > now or deadline == 0 and not (reached and not reached[i]) then rest[#rest + 1] = texts[i] end
  end
  return string.match(queue, '^[^|]*|') .. table.concat(rest), #rest
end

-- with_mark returns the queue with the mark of a refused caller that is not in it.
local function with_mark(queue)
  return (string.gsub(queue, '^(%d+) ([1-9])', '%1 0%2'))
end

-- enqueue returns the queue with an entry of owner. The entry replaces that of the same process, or
-- comes last. If the entry would not change, it returns the queue as it was. If the queue is full, it
-- returns it with the mark, so that the lock becomes free after a turn of each process in the queue. It
-- also returns whether the process receives messages; nil if that is unknown.
--
-- The owner has been waiting for `waited` ms, and retries after `retry` ms. If the server cannot count
-- subscribers, the process counts as alive for `timeout` ms.
local function enqueue(queue, owner, offer, waited, retry, timeout, channel, counts, now)
  local since, retry_at, deadline = 0, 0, 0
  local reached = reachable(channel, counts, {owner})
  local receives = reached and reached[1]
  if receives == nil then
    deadline = now + timeout
  elseif not receives then
    since, retry_at, deadline = now - waited, now + retry, now + timeout
  end
  local new = entry_text(owner, offer, since, retry_at, deadline)

  local first = string.find(queue, client(owner) .. ':', 1, true)
  if first then
    local stored_owner, stored_offer, retry_at, stored_deadline, last = string.match(queue, '^(%S+) (%d+) %d+ (%d+) (%d+);()', first)
    if not stored_owner then return queue, receives end -- not an entry of our scripts
    local lasts = receives == nil and retry_at == '0' and stored_deadline - now > timeout / 2
    if stored_owner == owner and stored_offer == offer and lasts then return queue, receives end
    return string.sub(queue, 1, first - 1) .. new .. string.sub(queue, last), receives
  end
  local _, unreachable = string.gsub(queue, ' [1-9]%d* %d+ %d+;', '')
  if receives == false and unreachable >= max_entries() / 8 then return with_mark(queue), receives end -- such processes are limited, because each can delay the others
  local length = queue_length(queue)
  if length >= max_entries() then
    -- mutant: never: speed
    if now % 16 ~= 0 then return with_mark(queue), receives end -- removing dead entries is slow, and many processes may retry
    queue, length = without_dead(queue, channel, counts, now)
    if length >= max_entries() then return with_mark(queue), receives end
  end
  local valid_end = string.find(queue, '|', 1, true)
  for _, _, _, _, _, _, last in entries(queue) do valid_end = last end
  if valid_end ~= #queue then queue = string.format('0 %.0f|', now) end -- the rest is no entry of our scripts: start a new queue
  return queue .. new, receives
end

-- first_grantable returns the first owner in the queue that can be granted the lock now; its offer,
-- at most 10 s; and the queue without this owner and without dead ones before it. It returns no owner
-- if there is none. next_owner is the owner that the release names, or '': its process is alive, and
-- next_owner gets the lock when it is the turn of that process.
local function first_grantable(queue, next_owner, offer, channel, counts, now)
  local kept = {string.match(queue, '^[^|]*|')}
  for owner, stored_offer, since, retry_at, deadline, first, last in entries(queue) do
    local grantable, alive = false, deadline > now
    if client(owner) == client(next_owner) then
      owner, stored_offer, grantable = next_owner, offer, true
    elseif deadline == 0 then
      local reached = reachable(channel, counts, {owner})
      grantable = not (reached and not reached[1])
    elseif alive then
      -- A process without messages finds out about a grant only when it retries. So it is granted the
      -- lock only shortly before its retry. The lock is unused until then, for up to a tenth of the
      -- time that the process has waited.
      grantable = retry_at - now <= math.min(math.max(20, (now - since) / 10), stored_offer / 2)
    end
    if grantable then return owner, math.min(stored_offer, 10000), table.concat(kept) .. string.sub(queue, last + 1) end
    if alive then kept[#kept + 1] = string.sub(queue, first, last) end
  end
  return nil, nil, table.concat(kept)
end

-- without_owner returns the queue without the entry of owner.
local function without_owner(queue, owner)
  for stored_owner, _, _, _, _, first, last in entries(queue) do
    if stored_owner == owner then return string.sub(queue, 1, first - 1) .. string.sub(queue, last + 1) end
  end
  return queue
end
