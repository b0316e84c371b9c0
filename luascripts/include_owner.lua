-- include_owner: how a lock is told from an application's own hash. It has no keys of its own.
--
-- The shape of its fields tells a lock. Values alone do not: counters are digits, too.

-- is_owner reports whether a field names an owner: "<uuid>:<integer>". Redisson's
-- integer is the number of a thread.
local function is_owner(field)
  return string.find(field, '^%x%x%x%x%x%x%x%x%-%x%x%x%x%-%x%x%x%x%-%x%x%x%x%-%x%x%x%x%x%x%x%x%x%x%x%x:%-?%d+$') ~= nil
end
