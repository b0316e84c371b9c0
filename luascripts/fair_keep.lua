-- fair_keep: the heartbeat of waiting owners of one process; others of it enter the queue together.
-- include: time, plain, fair, linger
--
-- KEYS[1]     lock      hash  owner -> hold count
-- KEYS[2]     queue     list  waiting owners, in the order of their arrival
-- KEYS[3]     timeouts  zset  waiting owner -> server's ms until which it counts as alive
-- KEYS[4]     never     string never there (include_fair)
-- ARGV[1]     channel   text  the channel of an owner begins with it (include_fair)
-- ARGV[2]     publish   text  the command that reaches it: PUBLISH or SPUBLISH
-- ARGV[3]     last      count 1 drops the dead; 0 does not, as more heartbeats of this process follow
-- ARGV[4]     enters    count how many of the owners, the last ones, enter the queue, in this order
-- ARGV[2*i+3] stay      ms    how long this owner's place lives without a heartbeat
-- ARGV[2*i+4] owner     text  "<client uuid>:<number>"; unless it enters, it should be in the queue
--
-- Returns a list. Its first number says when to look again if no message comes
-- before: the ms that are left of the lock's lease (-1 no expiry), or, when the
-- lock is free, until the first of the queue counts as dead; 0 when no owner waits.
-- Then, for each owner, 1 when it should ask now (it is its turn, it holds the
-- lock, the key holds something else, or the server did not let it enter), 0 when it waits on, 2 when it
-- has entered and waits, and an owner of Redisson's may tell it of its turn (fair_acquire), -2 when it is not in the
-- queue, or that cannot be told, and it has to ask anew.
--
-- If another client has the lock, and may keep it although no owner uses it, that client is told (include_linger).
-- Safe to repeat: an owner in the queue keeps its place.
local lock, queue, timeouts, never = KEYS[1], KEYS[2], KEYS[3], KEYS[4]
local channel, publish, last, enters = ARGV[1], ARGV[2], ARGV[3] == '1', tonumber(ARGV[4])

local now = clock()
local fields, answer = read_plain(lock, true)
if not fields and answer ~= -4 then return answer end
local stays, owners, replies = {}, {}, {0}
for i = 1, (#ARGV - 4) / 2 do
  local stay, owner = tonumber(ARGV[2 * i + 3]), ARGV[2 * i + 4]
  stays[i], owners[i], replies[i + 1] = stay, owner, 1
end
if not fields then return replies end
local left, own = redis.call('PTTL', lock), 0
local asker, holder = {}, {}
for i = 1, #fields, 2 do
  holder[fields[i]] = true
  if fields[i] ~= 'leasehold_line' then
    if not ours(fields[i]) then own = 2 end
    if #owners > 0 then notify_keeper(lock, fields[i], owners[1], true) end -- mutant: never, border: without an owner, no client is another one
  end
end

-- Our own owners come first: a process that is late with its heartbeat, but here before
-- it was dropped, has lost nothing.
local was, size = redis.call('LINDEX', queue, 0), redis.call('LLEN', queue)
local card = redis.call('ZCARD', timeouts)
-- mutant: border 2: equal numbers are sound before
local sound = size == card or size > 100 and size >= card -- an owner with a deadline is in the queue
local deadlines = #owners > 0 and redis.call('ZMSCORE', timeouts, unpack(owners))
local before, foreign, longest = nil, 0, 0
local function look()
  if not before then before, foreign = near(queue) end -- mutant: always: speed
end
local leads = was and redis.call('ZSCORE', timeouts, was)
if size ~= card or was and not ours(was) or leads and tonumber(leads) <= now then look() end
local kept, entering, till, came, waits = {}, {}, {}, nil, false
for i, owner in ipairs(owners) do
  asker[owner], longest = i, math.max(longest, stays[i])
  local score, count = deadlines[i], before and before[owner]
  if score and sound then
    if not alone(score - now, stays[i]) then look() end
    count = before and (before[owner] or math.max(foreign, expected(score - now, stays[i]))) or 0
  end
  if count then
    kept[#kept + 1], kept[#kept + 2] = now + stays[i] + count * 300000, owner
    replies[i + 1] = 0
    waits = waits or count > 0
  elseif not holder[owner] and i <= #owners - enters then
    replies[i + 1] = -2
  elseif not holder[owner] then
    -- mutant: operand 1: speed
    came = came or arrivals(queue, timeouts, now, stays[i], size)
    entering[#entering + 1], till[#till + 1] = owner, now + stays[i] + came * 300000
  end
end
-- mutant: operand 1, border: without an owner, the server refuses the RPUSH
if #entering > 0 and not enter(queue, timeouts, entering, till) then
  waits = waits or came > 0 -- mutant: operand 1: a foreign owner before one that was there is before one that enters
  for _, owner in ipairs(entering) do replies[asker[owner] + 1] = came > 0 and 2 or own end
end
redis.call('ZREM', timeouts, '') -- no such member: a first write that memory limits let through
if #kept > 0 then redis.call('ZADD', timeouts, unpack(kept)) end
waits = waits or foreign > 0

was = was or redis.call('LINDEX', queue, 0) -- mutant: operand 1: speed
local first, more, deadline = was, false, now
if last then first, more, deadline = head(queue, timeouts, now) end
if left ~= -2 then
  replies[1] = left
elseif more then
  replies[1] = 1
elseif first then
  replies[1] = math.max(deadline - now, 1)
  if asker[first] then
    replies[asker[first] + 1] = 1
  elseif last and (was ~= first or not ours(first)) then
    tell(channel, publish, first) -- the owner that the release told was one of the dead
  end
end
if first or more then outlive(queue, timeouts, now, longest, waits, size == 0) end
return replies
