-- Removes the hand-off that an elected has succeeded with, where the claim still holds the lease.
--
-- KEYS: lease, handoff    ARGV: claim
if redis.call('GET', KEYS[1]) == ARGV[1] then
  redis.call('DEL', KEYS[2])
end
return 1
