-- fair_keep: extends the deadlines of waiting owners of one client (heartbeat), and adds others to the queue.
-- include: time, plain, fair, linger
--
-- KEYS[1]     lock      hash  owner -> hold count
-- KEYS[2]     queue     list  waiting owners, in the order of their arrival
-- KEYS[3]     timeouts  zset  waiting owner -> server's ms until which it counts as alive
-- KEYS[4]     never     string a key that never exists (include_fair)
-- ARGV[1]     channel   text  what the channels of owners begin with (include_fair)
-- ARGV[2]     publish   text  the command that notifies them: PUBLISH or SPUBLISH
-- ARGV[3]     last      count 1 removes dead owners; 0 does not, because more heartbeats of this client follow
-- ARGV[4]     joining   count how many of the owners, the last ones, join the queue, in this order
-- ARGV[2*i+3] timeout   ms    how long this owner counts as alive without a heartbeat
-- ARGV[2*i+4] owner     text  "<client uuid>:<number>"; it is in the queue already unless it is joining
--
-- Returns a list. Its first number is the time in ms after which to call the script again if no message
-- arrives before: the remaining lease (-1 no expiry), or, if the lock is free, the time until the first owner
-- of the queue counts as dead; 0 if no owner waits.
-- Then there is one number for each owner. 1: send a request now, because it is the owner's turn, it holds
-- the lock, the key is not a fair lock, or the server did not let it join. 0: wait on. 2: it has joined and
-- waits, and a client of Redisson may notify it (fair_acquire). -2: it is not in the queue, or that is
-- unknown; it must send a request to join again.
--
-- If another client holds the lock and may keep it unused, that client is notified (include_linger).
--
-- Safe to repeat: an owner in the queue keeps its position, and joins once.
local lock, queue, timeouts, never = KEYS[1], KEYS[2], KEYS[3], KEYS[4]
local channel, publish, last, joining = ARGV[1], ARGV[2], ARGV[3] == '1', tonumber(ARGV[4])

local now = clock()
local fields, answer = read_plain(lock, true)
if not fields and answer ~= -4 then return answer end
local timeouts_of, owners, replies = {}, {}, {0}
for i = 1, (#ARGV - 4) / 2 do
  local timeout, owner = tonumber(ARGV[2 * i + 3]), ARGV[2 * i + 4]
  timeouts_of[i], owners[i], replies[i + 1] = timeout, owner, 1
end
if not fields then return replies end
local left, own = redis.call('PTTL', lock), 0
local index_of, holder = {}, {}
for i = 1, #fields, 2 do
  holder[fields[i]] = true
  if fields[i] ~= 'leasehold_line' then
    if not is_ours(fields[i]) then own = 2 end
    if #owners > 0 then notify_keeper(lock, fields[i], owners[1], true) end
  end
end

-- The owners of this call come before the removal of dead ones: a heartbeat that is late, but arrives before
-- its owner was removed, keeps the position.
local front, size = redis.call('LINDEX', queue, 0), redis.call('LLEN', queue)
local deadline_count = redis.call('ZCARD', timeouts)
-- mutant: border 2: equal numbers are consistent by the first operand
local consistent = size == deadline_count or size > 100 and size >= deadline_count -- then an owner with a deadline is also in the list
local deadlines = #owners > 0 and redis.call('ZMSCORE', timeouts, unpack(owners))
local before, foreign, longest_timeout = nil, 0, 0
-- read_foreign counts the foreign owners among the first 100, once.
local function read_foreign()
  if not before then before, foreign = first_hundred(queue) end -- mutant: always: speed
end
local front_deadline = front and redis.call('ZSCORE', timeouts, front)
if size ~= deadline_count or front and not is_ours(front) or front_deadline and tonumber(front_deadline) <= now then read_foreign() end
local extended, joined, joined_deadlines, foreign_before_joined, foreign_waits = {}, {}, {}, nil, false
for i, owner in ipairs(owners) do
  index_of[owner], longest_timeout = i, math.max(longest_timeout, timeouts_of[i])
  local score, foreign_before = deadlines[i], before and before[owner]
  if score and consistent then
    if not none_foreign_before(score - now, timeouts_of[i]) then read_foreign() end
    foreign_before = before and (before[owner] or math.max(foreign, foreign_by_deadline(score - now, timeouts_of[i]))) or 0
  end
  if foreign_before then
    extended[#extended + 1], extended[#extended + 2] = deadline_behind(foreign_before, now, timeouts_of[i]), owner
    replies[i + 1] = 0
    foreign_waits = foreign_waits or foreign_before > 0
  elseif not holder[owner] and i <= #owners - joining then
    replies[i + 1] = -2
  elseif not holder[owner] then
    -- mutant: operand 1: speed
    foreign_before_joined = foreign_before_joined or foreign_before_new(queue, timeouts, now, timeouts_of[i], size)
    joined[#joined + 1], joined_deadlines[#joined_deadlines + 1] = owner, deadline_behind(foreign_before_joined, now, timeouts_of[i])
  end
end
-- mutant: operand 1, border: without an owner, the server rejects the RPUSH
if #joined > 0 and not append(queue, timeouts, joined, joined_deadlines) then
  foreign_waits = foreign_waits or foreign_before_joined > 0 -- mutant: operand 1: a foreign owner before one in the queue is also before one that joins
  for _, owner in ipairs(joined) do replies[index_of[owner] + 1] = foreign_before_joined > 0 and 2 or own end
end
redis.call('ZREM', timeouts, '') -- deletes nothing; after a write that needs no memory, full memory does not stop the rest
if #extended > 0 then redis.call('ZADD', timeouts, unpack(extended)) end
foreign_waits = foreign_waits or foreign > 0

front = front or redis.call('LINDEX', queue, 0) -- mutant: operand 1: speed
local first, more, deadline = front, false, now
if last then first, more, deadline = first_alive(queue, timeouts, now, longest_timeout) end
if left ~= -2 then
  -- mutant: operand 3: true is replied as 1
  replies[1] = left == 0 and 1 or left -- 0 would mean that no owner waits
elseif more then
  replies[1] = 1
elseif first then
  replies[1] = math.max(deadline - now, 1)
  if index_of[first] then
    replies[index_of[first] + 1] = 1
  elseif last and (front ~= first or not is_ours(first)) then
    notify_owner(channel, publish, first) -- the release notified an owner that is dead
  end
end
if first or more then extend_expiry(queue, timeouts, now, longest_timeout, foreign_waits, size == 0) end
return replies
