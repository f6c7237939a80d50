-- Marks a prefix with the wire version that uses it, or tells which one does.
--
-- KEYS[1]  version key
-- ARGV[1]  the version of the caller
-- reply    the version that the prefix has now
--
-- Atomic, so that of two first users with different versions one is told. It
-- writes (an equal value where one is there), so that a server which takes no
-- writes says so here and not at the first lock.
local version = redis.call('GET', KEYS[1])
if not version then
  version = ARGV[1]
end
redis.call('SET', KEYS[1], version)
return version
