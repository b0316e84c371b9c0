-- include_reply: what scripts ask of the replies to their commands. It has no keys of its own.

-- failed returns the reply of a pcall if it is an error.
local function failed(reply)
  if type(reply) == 'table' and reply.err then return reply end
end
