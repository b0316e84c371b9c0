-- include_reply: checks the replies of redis.pcall. It has no keys of its own.

-- failed returns the reply of redis.pcall if it is an error, otherwise nil.
local function failed(reply)
  if type(reply) == 'table' and reply.err then return reply end
end
