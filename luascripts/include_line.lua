-- include_line: the line of processes that wait for a plain lock. It has no keys of its own.
--
-- It is the value of one field in the lock's hash, leasehold_line, so that it
-- moves with the lock, lives as long, and needs no key and no right of its own:
--
--   <grants>|<owner> <offer> <fenced> <ask> <deadline>;<owner> …
--
-- grants counts how often the lock was handed on since it was last free. An entry
-- is a process that waits: the owner string under which it would hold the lock, the
-- ms that it gets to begin with, 1 if it needs the register of tokens, the number of
-- its question that put it there, and the server's time in ms until which it is
-- believed to be alive.
--
-- Redisson's scripts look for owners of their own and do not see it. When one of
-- its owners releases, the whole hash goes, and the message makes ours ask again.

-- entry returns where the entry of owner is in text, nil if it is not.
local function entry(text, owner)
  local first, last = string.find(text, owner .. ' ', 1, true)
  if not first then return nil end
  return first, string.find(text, ';', last, true)
end

-- enlisted returns text with this entry: in the place that owner has, or at the end.
local function enlisted(text, owner, offer, fenced, ask, deadline)
  if text == '' then text = '0|' end
  local new = string.format('%s %d %d %d %.0f;', owner, offer, fenced, ask, deadline)
  local first, last = entry(text, owner)
  if not first then return text .. new end
  return string.sub(text, 1, first - 1) .. new .. string.sub(text, last + 1)
end

-- struck returns text without the entry of owner.
local function struck(text, owner)
  local first, last = entry(text, owner)
  if not first then return text end
  return string.sub(text, 1, first - 1) .. string.sub(text, last + 1)
end
