-- include_keeps: which owner of a plain lock may be of a client that keeps locks (include_linger). It has no keys of its own.

-- keeps reports whether an owner string is long enough for that. No other one of a plain lock is.
local function keeps(owner) return #owner >= 59 end
