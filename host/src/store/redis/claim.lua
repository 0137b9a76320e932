-- Takes the lease of one role for a claim, or says why not.
--
-- KEYS: lease, term, holder, handoff, history
-- ARGV: claim, ttl in ms, highest term that the instance has seen, instance, admin, digest, channel, role, our protocol
--
-- Returns one of
--   {'granted', term, handoff or false}     {'held', term, ms left, by}      {'vanished', term, ms left}
--   {'behind', term found, ms to wait}      {'no-expiry', by}                {'newer', protocol}
local lease, term_key, holder, handoff, history = KEYS[1], KEYS[2], KEYS[3], KEYS[4], KEYS[5]
local claim, ttl, seen, protocol = ARGV[1], tonumber(ARGV[2]), tonumber(ARGV[3]), ARGV[9]

local time = redis.call('TIME')
local now = tonumber(time[1]) * 1000 + math.floor(tonumber(time[2]) / 1000)
local ends = string.format('%.0f', now + ttl)

local written_by = redis.call('HGET', holder, 'protocol')
if written_by and tonumber(written_by) and tonumber(written_by) > tonumber(protocol) then
  return {'newer', written_by}
end

local stored_term = redis.call('GET', term_key) or '0'
local term = tonumber(stored_term)
if not term or term < 0 or term ~= math.floor(term) then
  return redis.error_reply('WRONGTYPE the term counter ' .. term_key .. ' is not a number')
end

local held_by = redis.call('GET', lease)
if held_by and held_by ~= claim then
  local left = redis.call('PTTL', lease)
  if left == -1 then
    return {'no-expiry', held_by}
  end
  return {'held', term, left, held_by}
end

if held_by then
  -- Asked again, because the first answer was lost: the same term, for a full ttl from now.
  redis.call('PEXPIREAT', lease, ends)
  redis.call('HSET', holder, 'until', ends)
  return {'granted', term, redis.call('GET', handoff)}
end

-- The key is gone. If the lease was not released and has not run out, it was deleted or evicted, and its holder may
-- still trust it.
local last = redis.call('HMGET', holder, 'until', 'released')
if last[1] and last[2] ~= '1' and tonumber(last[1]) > now then
  return {'vanished', term, tonumber(last[1]) - now}
end

-- The counter is below a term that was given out: the store lost data, perhaps a lease that is still trusted. From here
-- on it looks like a lease that vanished, and is waited out by everybody.
if term < seen then
  redis.call('SET', term_key, string.format('%.0f', seen))
  redis.call('HSET', holder, 'until', ends, 'released', '0', 'protocol', protocol)
  return {'behind', term, ttl}
end

term = redis.call('INCR', term_key)
redis.call('SET', lease, claim, 'PXAT', ends)
redis.call('HSET', holder, 'instance', ARGV[4], 'term', term, 'since', string.format('%.0f', now), 'until', ends,
  'released', '0', 'admin', ARGV[5], 'digest', ARGV[6], 'protocol', protocol)
redis.call('XADD', history, 'MAXLEN', '~', 1000, '*', 'event', 'elected', 'term', term, 'instance', ARGV[4],
  'digest', ARGV[6])
-- Without a right to the channel, all goes on, only slower.
redis.pcall('PUBLISH', ARGV[7], 'elected ' .. ARGV[8] .. ' ' .. term .. ' ' .. claim)
return {'granted', term, redis.call('GET', handoff)}
