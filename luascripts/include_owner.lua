-- include_owner: how to tell a lock from an application's own hash. It has no keys of its own.
--
-- A lock is told by the shape of its fields. Values alone do not tell it: counters are digits, too.

-- is_owner reports whether a field names an owner: "<uuid>:<integer>". Redisson's
-- integer is the number of a thread.
local function is_owner(field)
  return string.find(field, '^%x%x%x%x%x%x%x%x%-%x%x%x%x%-%x%x%x%x%-%x%x%x%x%-%x%x%x%x%x%x%x%x%x%x%x%x:%-?%d+$') ~= nil
end
