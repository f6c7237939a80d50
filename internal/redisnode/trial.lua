-- Tries the commands that the scripts need.
--
-- KEYS[1]  a key that is never there
-- ARGV[1]  PUBLISH, or SPUBLISH in a Cluster
-- ARGV[2]  a channel that nobody listens to
-- ARGV[3…] further commands to try, each with a key as its only argument
-- reply    a list: command, error, … of those that failed
--
-- Leaves nothing behind, whatever is forbidden: a SET with XX makes no key, and
-- none of the others does. SET comes first, since a server looks at its memory
-- limit only until a script's first write.
local failed = {}
local function try(...)
  local reply = redis.pcall(...)
  if type(reply) == 'table' and reply.err then
    table.insert(failed, (...))
    table.insert(failed, reply.err)
  end
end
try('SET', KEYS[1], '', 'XX', 'PX', 1)
try('GET', KEYS[1])
try('PTTL', KEYS[1])
try('PEXPIRE', KEYS[1], 1)
try('DEL', KEYS[1])
try('TIME')
try(ARGV[1], ARGV[2], '')
for i = 3, #ARGV do
  try(ARGV[i], KEYS[1])
end
return failed
