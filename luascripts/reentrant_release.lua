-- reentrant_release: an owner gives holds back, and the lock on to who waits for it.
--
-- KEYS[1] lock      hash    owner -> hold count, and the line (include_line)
-- KEYS[2] register  string  the latest fencing token; only with fencing
-- ARGV[1] owner    text   "<client uuid>:<number>"
-- ARGV[2] leave    count  the hold count that must remain; 0 frees the lock
-- ARGV[3] channel  text   where waiters listen; a process that waits also at "<channel>:<client uuid>" and "<channel>:leasehold"
-- ARGV[4] publish  text   the command that reaches them: PUBLISH or SPUBLISH
-- ARGV[5] counts   count  1 when that command answers how many it reached, 0 when only how many of them are on this node
-- ARGV[6] last     text   the last token that the owner gave out
-- ARGV[7] spare    count  how many tokens more the register is raised by
-- ARGV[8] heir     text   the owner who waits in the same process, at the end of the line; this and what follows is missing if there is none
-- ARGV[9] offer    ms     what the lock is granted for when it comes to the heir
-- ARGV[10] keep    ms     how long the heir's place in line is kept unheard
-- ARGV[11] fenced  count  1 if the heir needs the register
-- ARGV[12] ask     count  what stands for the number of the heir's question
--
-- Returns 1 when the owner holds `leave` times now.
-- Returns a string when the heir has the lock now: its fencing token.
-- Returns -2 when the owner holds nothing: it was lost, or an earlier copy of
-- this call freed it. If it stands in line, it does no longer.
-- Returns -4 when the key holds something else; nothing was done.
--
-- The first in line who is alive becomes the holder, with its offer for a lease,
-- and is told so: "<owner> <token> <ask>" at its own channel. Somebody whom no message
-- reaches is dead. Listeners who never stand in line, as Redisson's, only ever get a
-- lock that is free: so after every 64 grants, after 4 when there are such listeners,
-- and after 16 when that cannot be known, it is let go with a message to all, and
-- whoever asks first has it. Those who know of the line all listen at
-- "<channel>:leasehold", too: by that they are told from the others, and there they
-- are told before, "aside", if it is for those, as they would always be the faster ones.
--
-- Safe to repeat, and it never touches another owner's field.
local lock, register = KEYS[1], KEYS[2]
local owner, leave = ARGV[1], ARGV[2]
local channel, publish, counts = ARGV[3], ARGV[4], ARGV[5] == '1'
local last, spare = ARGV[6], ARGV[7]
local heir, offer, keep, fenced, ask = ARGV[8] or '', ARGV[9], ARGV[10], ARGV[11], ARGV[12]

local found = redis.pcall('HMGET', lock, owner, 'leasehold_line')
if found.err then
  if string.find(found.err, 'WRONGTYPE', 1, true) then return -4 end
  return found
end
local count, line = found[1], found[2] or ''
if not count then
  local rest = struck(line, owner)
  if rest ~= line then
    redis.call('HDEL', lock, 'leasehold_line') -- first, as memory limits let it pass, and what follows it
    -- Beside an owner only: a key that is gone would come back without an end.
    if string.find(rest, ';', 1, true) and redis.call('EXISTS', lock) == 1 then redis.call('HSET', lock, 'leasehold_line', rest) end
  end
  return -2
end
if not string.find(count, '^[0-9]+$') then return -4 end

if leave ~= '0' then
  if count ~= leave then
    redis.call('HDEL', lock, '')
    redis.call('HSET', lock, owner, leave)
  end
  return 1
end

-- The owner's field goes last, and the key with it: in a slot that moves to another
-- node of a cluster, a key that is gone cannot be written any more.
if heir ~= '' or line ~= '' then
  redis.call('HDEL', lock, 'leasehold_line') -- first, as memory limits let it pass, and what follows it
  local ours, time = channel .. ':leasehold', redis.call('TIME')
  local now = time[1] * 1000 + math.floor(time[2] / 1000)
  if heir ~= '' then line = enlisted(line, heir, offer, fenced, ask, now + keep) end
  local grants = (tonumber(string.match(line, '^(%d+)|')) or 0) + 1

  local most, others = 16, true
  local listeners = redis.pcall('PUBSUB', publish == 'SPUBLISH' and 'SHARDNUMSUB' or 'NUMSUB', channel, ours)
  if counts and not listeners.err then
    others = tonumber(listeners[2]) > tonumber(listeners[4])
    most = others and 4 or 64
  end

  if grants <= most then
    for who, lease, needs, number, deadline in string.gmatch(line, '([^|; ]+) (%d+) (%d) (%d+) (%d+);') do
      line = struck(line, who)
      local sound, token = false, nil
      if tonumber(deadline) > now and (needs == '0' or register) then
        sound, token = pcall(grown, register, time, last, spare) -- what is wrong with the register must not undo a release
      end
      if sound then
        line = string.gsub(line, '^%d*', string.format('%d', grants), 1)
        redis.call('HSET', lock, who, 1, 'leasehold_line', line)
        local reached, expiry = 1, redis.pcall('PEXPIRE', lock, lease)
        if type(expiry) == 'table' then
          reached, counts = 0, true -- nobody is given what would not end in time
        elseif who ~= heir then -- told of what is written already: a message cannot be taken back
          reached = redis.pcall(publish, channel .. ':' .. string.match(who, '^(.*):'), who .. ' ' .. token .. ' ' .. number)
          if type(reached) == 'table' then reached = 0 end
        end
        if reached > 0 or not counts then
          redis.call('HDEL', lock, owner)
          if who == heir then return token end
          return 1
        end
        redis.call('HDEL', lock, who, 'leasehold_line')
      end
    end
  elseif others then
    redis.pcall(publish, ours, 'aside')
  end
end
redis.call('HDEL', lock, owner)
redis.pcall(publish, channel, '0') -- a hint: being refused it must not undo a release
return 1
