-- Second round: votes on a number that a client made from the counters of a
-- majority.
--
-- KEYS[1]  lock key
-- KEYS[2]  the bucket's clock: the largest number accepted in it
-- ARGV[1]  owner
-- ARGV[2]  try
-- ARGV[3]  number proposed
-- reply    accepted, counter   the number is now the counter
--          behind, counter     the counter is not smaller
--          lost, counter       the lock is not this try's (any more)
--          conflict, key       the key holds data that is not ours
--
-- Atomic for the reason given in acquire.lua. No clock is looked at. There is no
-- limit ahead, since the number is a counter + 1, and refusing it would stop a
-- bucket for as long as one node's clock or counter is ahead. And none behind: the
-- number is larger than what this node reported when it gave the lock, its clock
-- minus 2 s included, and that floor has moved on since. If the node has lost its
-- data meanwhile, the lock is lost, too. The expiry of the lock stays as it is.
local number = tonumber(ARGV[3])
local counter = tonumber(redis.call('GET', KEYS[2]) or 0)
if not counter or counter < 0 or counter >= 2 ^ 53 then
  return {'conflict', KEYS[2]}
end
local me, accepted, rest = string.match(redis.call('GET', KEYS[1]) or '', '^dl1 (%S+) (%d+) (.*)$')
if me ~= ARGV[1] .. '.' .. ARGV[2] then
  return {'lost', string.format('%.0f', counter)}
end
if accepted == ARGV[3] then
  return {'accepted', ARGV[3]}
end
if number <= counter then
  return {'behind', string.format('%.0f', counter)}
end
redis.call('SET', KEYS[2], ARGV[3])
redis.call('SET', KEYS[1], table.concat({'dl1', me, ARGV[3], rest}, ' '), 'KEEPTTL')
return {'accepted', ARGV[3]}
