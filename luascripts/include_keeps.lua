-- include_keeps: which owner may be of a client that keeps locks (include_linger). It has no keys of its own.

-- keeps reports whether the string of an owner is long enough for one of a client that keeps locks. No other
-- owner of leasehold has such a long one.
local function keeps(owner) return #owner >= 59 end
