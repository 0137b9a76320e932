-- Reads or changes a role's state, where the claim holds the lease in this term.
--
-- KEYS: lease, term, state
-- ARGV: claim, term, most keys, most bytes, what, and for what =
--   get, delete: keys    exists: key    keys: cursor    set: key, value, key, value …    increment: key, delta
--
-- Returns one of
--   {'fenced'}    {'done'}    {'values', value or nil …}    {'found', 1 or 0}    {'keys', next cursor, key …}
--   {'sum', sum}  {'too-many', keys}  {'too-large', bytes}  {'no-number'}
--
-- The field tenure/bytes counts what keys and values take; fields that begin with tenure/ are the host's own and not counted.
local state, what = KEYS[3], ARGV[5]
if redis.call('GET', KEYS[1]) ~= ARGV[1] or redis.call('GET', KEYS[2]) ~= ARGV[2] then
  return {'fenced'}
end

local function own(key)
  return string.sub(key, 1, 7) == 'tenure/'
end

local function size(key)
  local value = redis.call('HSTRLEN', state, key)
  if value > 0 or redis.call('HEXISTS', state, key) == 1 then
    return #key + value, 0
  end
  return 0, 1
end

-- How many keys the plugin would have with so many more; nil where that is not too many.
local function too_many(fresh)
  local keys = redis.call('HLEN', state) + fresh
  if fresh == 0 or keys <= tonumber(ARGV[3]) then
    return nil
  end
  keys = keys - redis.call('HEXISTS', state, 'tenure/bytes') - redis.call('HEXISTS', state, 'tenure/slot')
  return keys > tonumber(ARGV[3]) and keys or nil
end

if what == 'get' then
  local values = redis.call('HMGET', state, unpack(ARGV, 6))
  table.insert(values, 1, 'values')
  return values
elseif what == 'exists' then
  return {'found', redis.call('HEXISTS', state, ARGV[6])}
elseif what == 'keys' then
  local page = redis.call('HSCAN', state, ARGV[6], 'COUNT', 100)
  local reply = {'keys', page[1]}
  for at = 1, #page[2], 2 do
    reply[#reply + 1] = page[2][at]
  end
  return reply
elseif what == 'set' then
  local more, fresh = 0, 0
  for at = 6, #ARGV, 2 do
    if not own(ARGV[at]) then
      local present, new = size(ARGV[at])
      more = more + #ARGV[at] + #ARGV[at + 1] - present
      fresh = fresh + new
    end
  end
  if more > 0 or fresh > 0 then
    local bytes = (tonumber(redis.call('HGET', state, 'tenure/bytes')) or 0) + more
    if bytes > tonumber(ARGV[4]) then
      return {'too-large', bytes}
    end
    local keys = too_many(fresh)
    if keys then
      return {'too-many', keys}
    end
  end
  if more ~= 0 then
    redis.call('HINCRBY', state, 'tenure/bytes', more)
  end
  redis.call('HSET', state, unpack(ARGV, 6))
  return {'done'}
elseif what == 'delete' then
  local less = 0
  for at = 6, #ARGV do
    less = less + size(ARGV[at])
    redis.call('HDEL', state, ARGV[at])
  end
  if less ~= 0 then
    redis.call('HINCRBY', state, 'tenure/bytes', -less)
  end
  return {'done'}
elseif what == 'increment' then
  local before, new = size(ARGV[6])
  local keys = too_many(new)
  if keys then
    return {'too-many', keys}
  end
  local sum = redis.pcall('HINCRBY', state, ARGV[6], ARGV[7])
  if type(sum) == 'table' then
    if string.find(sum.err, 'WRONGTYPE', 1, true) then
      return sum
    end
    return {'no-number'}
  end
  if sum < 0 then
    redis.call('HINCRBY', state, ARGV[6], '-' .. ARGV[7])
    return {'no-number'}
  end
  local after = size(ARGV[6])
  if after ~= before then
    redis.call('HINCRBY', state, 'tenure/bytes', after - before)
  end
  -- As text: a number of Lua's loses digits above 2^53.
  return {'sum', redis.call('HGET', state, ARGV[6])}
end
return {'unknown'}
