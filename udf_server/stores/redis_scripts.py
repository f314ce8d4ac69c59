"""The scripts of RedisStore, in Lua. Redis runs each of them as one step."""

__all__ = ["CHANGE_SCRIPT", "CLAIM_SCRIPT", "OWN_SCRIPT", "PUT_SCRIPT", "RELEASE_SCRIPT"]

# KEYS are pairs of a claim and its entry. ARGV has the name of this server, the prefix of servers, the milliseconds of
# a claim, those of the lease of this server, which is renewed, and those that a lease may have left at most; the number
# of the last byte of the beginning of an entry, and the beginning of each that counts as none.
CLAIM_SCRIPT = """
redis.call('SET', ARGV[2] .. ARGV[1], '', 'PX', ARGV[4])
local function text(...)
  local found = redis.pcall(...)
  return type(found) == 'string' and found or '' -- it may be of another type, whoever has written it
end
local mine = {}
for i = 1, #KEYS, 2 do
  mine[#mine + 1] = 0
  local beginning = text('GETRANGE', KEYS[i + 1], 0, ARGV[6])
  if beginning == '' or beginning == ARGV[6 + (i + 1) / 2] then
    local server = text('GET', KEYS[i])
    local left = redis.call('PTTL', ARGV[2] .. server)
    if server == ARGV[1] or left < 0 or left > tonumber(ARGV[5]) then
      redis.call('SET', KEYS[i], ARGV[1], 'PX', ARGV[3])
      mine[#mine] = 1
    end
  end
end
return mine
"""
# KEYS are pairs of a claim and its entry; ARGV has the milliseconds, then the entries.
PUT_SCRIPT = """
for i = 1, #KEYS, 2 do
  redis.call('SET', KEYS[i + 1], ARGV[(i + 1) / 2 + 1], 'PX', ARGV[1])
  redis.call('DEL', KEYS[i])
end
"""
RELEASE_SCRIPT = """
for i = 1, #KEYS do
  if redis.call('GET', KEYS[i]) == ARGV[1] then redis.call('DEL', KEYS[i]) end
end
"""
# The entries of a function's own are one hash without an expiry, because Redis evicts what has one, unless it evicts
# nothing. A value begins with its expiry in milliseconds and a colon. KEYS are the hash and a sorted set of the
# expiries.
_NOW = """
local time = redis.call('TIME')
local now = time[1] * 1000 + math.floor(time[2] / 1000)
local function found(key)
  local kept = redis.call('HGET', KEYS[1], key)
  if not kept then return false end
  local colon = string.find(kept, ':', 1, true)
  if tonumber(string.sub(kept, 1, colon - 1)) <= now then return false end
  return string.sub(kept, colon + 1)
end
"""
OWN_SCRIPT = f"""{_NOW}
local all = {{}}
for i = 1, #ARGV do all[i] = found(ARGV[i]) end
return all
"""
# ARGV has the milliseconds that new entries stay, then for each change: key, '1' if it must have an entry, that, the
# new one.
CHANGE_SCRIPT = f"""{_NOW}
local old = redis.call('ZRANGEBYSCORE', KEYS[2], '-inf', now, 'LIMIT', 0, 1000)
for _, key in ipairs(old) do
  redis.call('HDEL', KEYS[1], key)
  redis.call('ZREM', KEYS[2], key)
end
local until_ = string.format('%.0f', now + ARGV[1])
local made = {{}}
for i = 2, #ARGV, 4 do
  local kept = found(ARGV[i])
  made[#made + 1] = 0
  if (ARGV[i + 1] == '0' and not kept) or (ARGV[i + 1] == '1' and kept == ARGV[i + 2]) then
    redis.call('HSET', KEYS[1], ARGV[i], until_ .. ':' .. ARGV[i + 3])
    redis.call('ZADD', KEYS[2], until_, ARGV[i])
    made[#made] = 1
  end
end
return made
"""
