-- include_line: the line of processes that wait for a plain lock. It has no keys of its own.
--
-- The line is the value of one field in the lock's hash, leasehold_line. So it moves
-- with the lock, lives while the lock lives, and needs no key and no right of its own:
--
--   <grants> <since>|<owner> <offer> <came> <due> <deadline>;<owner> …
--
-- grants counts how often the lock was handed off since it was last free, at since.
-- A zero before since is a mark: since then, a caller was refused that does not stand in line.
-- Versions that do not know the mark read the same number, and may drop the zero.
-- Each entry is a process that waits: the owner string under which it would hold the
-- lock, and the ms of lease with which the lock is granted to it. The last three numbers
-- say how the process is known to be alive. All times are the server's, in ms:
--
--   0 0 0                  The server counts it among the listeners of its channel.
--   0 0 <deadline>         The server cannot count listeners. The process is alive until the deadline.
--   <came> <due> <deadline>
--                          It has waited since came, and no message reaches it. It asks again
--                          at due, and is alive until the deadline.
--
-- A process writes its entry when it comes, and again only when the entry must change.
-- So a line in which nothing happens costs the server's log and its replicas nothing.
--
-- Redisson's scripts look for their own owners and do not see the line. When an owner
-- of Redisson's releases the lock, the whole hash goes, and the message makes our waiters ask again.

-- places returns the largest number of entries of a line. A process that finds it full asks
-- again later.
local function places() return 64 end

-- legible returns the text of a line, or '' for one that our scripts did not write: that one
-- is replaced. A text that is too long is not read.
local function legible(text)
  if #text > 32768 or not string.find(text, '^%d+ %d+|') then return '' end
  return text
end

-- client returns the process of an owner: the owner string up to the colon.
local function client(owner)
  return string.match(owner, '^(.*):')
end

-- entries iterates over a line: the owner, the offer, the three numbers, and where the
-- entry begins and ends. It stops after that many entries, and at text that is no entry:
-- our scripts did not write what follows.
local function entries(line)
  local at, seen = (string.find(line, '|', 1, true) or 0) + 1, 0
  return function()
    local first, last, owner, offer, came, due, deadline = string.find(line, '^([%x%-]+:%d+) (%d+) (%d+) (%d+) (%d+);', at)
    if not first or seen == places() then return nil end
    at, seen = last + 1, seen + 1
    return owner, offer, tonumber(came), tonumber(due), tonumber(deadline), first, last
  end
end

-- entry returns the text of one entry.
local function entry(owner, offer, came, due, deadline)
  return string.format('%s %s %.0f %.0f %.0f;', owner, offer, came, due, deadline)
end

-- standing returns how many entries a line has.
local function standing(line)
  local _, n = string.gsub(line, ';', '')
  return n
end

-- reached reports for each of these owners whether a message reaches its process. It
-- returns nil if that cannot be known: counts is false where a server does not count all
-- listeners, and the right to ask may be missing.
local function reached(channel, counts, owners)
  if not counts then return nil end
  local channels = {}
  for i, owner in ipairs(owners) do channels[i] = channel .. ':' .. client(owner) end
  local reply = redis.pcall('PUBSUB', 'NUMSUB', unpack(channels))
  if reply.err then return nil end
  local reaches = {}
  for i = 1, #owners do reaches[i] = tonumber(reply[2 * i]) > 0 end
  return reaches
end

-- living returns the line without the dead, and its length.
local function living(line, channel, counts, now)
  local owners, tills, texts = {}, {}, {}
  for owner, _, _, _, till, first, last in entries(line) do
    local n = #owners + 1
    owners[n], tills[n], texts[n] = owner, till, string.sub(line, first, last)
  end
  local reaches, rest = reached(channel, counts, owners), {}
  for i, till in ipairs(tills) do
    if till > now or till == 0 and not (reaches and not reaches[i]) then rest[#rest + 1] = texts[i] end
  end
  return string.match(line, '^[^|]*|') .. table.concat(rest), #rest
end

-- enlisted returns the line with an entry of owner: in the place that its process has,
-- or at the end. It returns the line unchanged when the line is full, or nothing is new. It also
-- returns whether a message reaches the process; nil if that cannot be known.
--
-- The process has been waiting for `waited` ms, and asks again in `again`. Where the server
-- cannot count listeners, the process counts as alive for `keep`.
local function enlisted(line, owner, offer, waited, again, keep, channel, counts, now)
  local came, due, deadline = 0, 0, 0
  local reaches = reached(channel, counts, {owner})
  local hears = reaches and reaches[1]
  if hears == nil then
    deadline = now + keep
  elseif not hears then
    came, due, deadline = now - waited, now + again, now + keep
  end
  local new = entry(owner, offer, came, due, deadline)

  local first = string.find(line, client(owner) .. ':', 1, true)
  if first then
    local who, gets, before, till, last = string.match(line, '^(%S+) (%d+) %d+ (%d+) (%d+);()', first)
    if not who then return line, hears end -- our scripts did not write it
    local lasts = hears == nil and before == '0' and till - now > keep / 2
    if who == owner and gets == offer and lasts then return line, hears end
    return string.sub(line, 1, first - 1) .. new .. string.sub(line, last), hears
  end
  local _, deaf = string.gsub(line, ' [1-9]%d* %d+ %d+;', '')
  if hears == false and deaf >= places() / 8 then return line, hears end -- each of them can make the others wait
  local length = standing(line)
  if length >= places() then
    -- mutant: never: speed
    if now % 16 ~= 0 then return line, hears end -- to look for the dead takes long, and many may ask
    line, length = living(line, channel, counts, now)
    if length >= places() then return line, hears end
  end
  local sound = string.find(line, '|', 1, true)
  for _, _, _, _, _, _, last in entries(line) do sound = last end
  if sound ~= #line then line = string.format('0 %.0f|', now) end -- our scripts did not write it
  return line .. new, hears
end

-- successor returns the first owner in line that can be granted the lock now, its offer,
-- and the line without it and without the dead before it; no owner if there is none.
-- The process of heir is known to be alive, and heir is granted the lock in its place.
local function successor(line, heir, offer, channel, counts, now)
  local kept = {string.match(line, '^[^|]*|')}
  for owner, gets, came, due, deadline, first, last in entries(line) do
    local takes, stays = false, deadline > now
    if client(owner) == client(heir) then
      owner, gets, takes = heir, offer, true
    elseif deadline == 0 then
      local reaches = reached(channel, counts, {owner})
      takes = not (reaches and not reaches[1])
    elseif stays then
      -- A process that hears nothing finds the lock only when it asks. It is granted the
      -- lock shortly before: the longer it has waited, the longer the others may have to.
      takes = due - now <= math.min(math.max(20, (now - came) / 10), gets / 2)
    end
    if takes then return owner, math.min(gets, 10000), table.concat(kept) .. string.sub(line, last + 1) end
    if stays then kept[#kept + 1] = string.sub(line, first, last) end
  end
  return nil, nil, table.concat(kept)
end

-- marked returns the line with the mark of a caller that was refused, and does not stand in it.
local function marked(line)
  return (string.gsub(line, '^(%d+) ([1-9])', '%1 0%2'))
end

-- struck returns the line without the entry of owner.
local function struck(line, owner)
  for who, _, _, _, _, first, last in entries(line) do
    if who == owner then return string.sub(line, 1, first - 1) .. string.sub(line, last + 1) end
  end
  return line
end
