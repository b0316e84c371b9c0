-- include_may_linger: whether an owner of a plain lock can be one of a client that keeps locks (include_linger). It has no keys of its own.

-- may_linger reports whether an owner string is as long as those of clients that keep locks. No
-- other owner string of a plain lock is.
local function may_linger(owner) return #owner >= 60 end
