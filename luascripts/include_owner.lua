-- include_owner: how to tell a lock from a hash of the application. It has no keys of its own.
--
-- A lock is recognized by its field names. Values do not suffice: a hash of counters has digits, too.

-- is_owner reports whether a field name is an owner: "<uuid>:<integer>". Redisson's integer is a
-- thread id.
local function is_owner(field)
  return string.find(field, '^%x%x%x%x%x%x%x%x%-%x%x%x%x%-%x%x%x%x%-%x%x%x%x%-%x%x%x%x%x%x%x%x%x%x%x%x:%-?%d+$') ~= nil
end
