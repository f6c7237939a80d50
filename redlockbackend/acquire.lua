-- First round: takes the lock on this node if it is free, and votes on the number
-- proposed for it.
--
-- KEYS[1]  lock key
-- KEYS[2]  the bucket's clock: the largest number accepted in it
-- KEYS[3]  the owner's tombstone
-- ARGV[1]  owner
-- ARGV[2]  try: rises with each attempt of the same owner
-- ARGV[3]  number proposed, from the client's clock
-- ARGV[4]  TTL in milliseconds
-- ARGV[5]  metadata, kept for people
-- ARGV[6]  1: an earlier copy of this request may still be on its way
-- reply    accepted, counter         taken, and the number is now the counter
--          granted, counter          taken, but the number was not accepted
--          held, counter, PTTL, who  another's; PTTL in ms, negative if it has no expiry
--          dead, counter             this try was given up, or a later one came first
--          conflict, key             the key holds data that is not ours
--
-- Atomic, so that a node gives a lock once, and accepts only a number larger than
-- all before it and only from the present owner: that is what orders the numbers.
--
-- A node's counter is at least its own clock minus 2 s. So a node that lost its
-- data refuses old numbers, and a client whose clock is slow learns better ones.
-- A number more than 2 s ahead of the node's clock is not accepted in this round
-- (unless it just continues the counter): so no client's clock runs a bucket's
-- numbers ahead of time. Both grant, and the second round (accept.lua) decides.
--
-- A later try of the same owner takes the place of an earlier one, as if that had
-- been released. Expiry is never shortened for the same try.
local owner, try, ttl = ARGV[1], tonumber(ARGV[2]), tonumber(ARGV[4])
local number = tonumber(ARGV[3])

local counter = tonumber(redis.call('GET', KEYS[2]) or 0)
if not counter or counter < 0 or counter >= 2 ^ 53 then
  return {'conflict', KEYS[2]}
end
local time = redis.call('TIME')
local sec, usec = tonumber(time[1]), tonumber(time[2])
local now = sec * 100000 + math.floor(usec / 10)
counter = math.max(counter, now - 200000)
local seen = string.format('%.0f', counter)

if tonumber(redis.call('GET', KEYS[3]) or -1) >= try then
  return {'dead', seen}
end

local accepted, since, left = 0, string.format('%.0f', sec * 1000 + math.floor(usec / 1000)), 0
local value = redis.call('GET', KEYS[1])
if value then
  local o, t, n, s = string.match(value, '^dl1 (%S+)%.(%d+) (%d+) (%d+) ')
  if not o then
    return {'conflict', KEYS[1]}
  end
  left = redis.call('PTTL', KEYS[1])
  if o ~= owner then
    if ARGV[6] == '1' then
      redis.call('SET', KEYS[3], ARGV[2], 'PX', ttl)
    end
    return {'held', seen, left, o}
  end
  t = tonumber(t)
  if t > try then
    return {'dead', seen}
  elseif t == try then
    accepted, since = tonumber(n), s
  else
    left = 0
  end
end

if accepted == 0 and number > counter and (number <= now + 200000 or number == counter + 1) then
  redis.call('SET', KEYS[2], ARGV[3])
  accepted, seen = number, ARGV[3]
end
local record = {'dl1', owner .. '.' .. ARGV[2], string.format('%.0f', accepted), since, ARGV[4], ARGV[5]}
redis.call('SET', KEYS[1], table.concat(record, ' '), 'PX', math.max(ttl, left))
return {accepted == number and 'accepted' or 'granted', seen}
