"""The Lua scripts of the ledgers, which Redis runs for each claim. Redis's clock is the only one that they read."""

from udf_server.limits.sharing.ledger import (
    AHEAD_PARTS,
    AHEAD_SECONDS,
    AHEAD_SHARE,
    LEASE_SECONDS,
    SLOTS,
    TURN_SECONDS,
)

__all__ = ["BUDGET_DAYS", "BUDGET_SCRIPT", "SCRIPT"]

BUDGET_DAYS = 7
"""Redis forgets what a job has spent this long after its last claim."""

_BODY = """
local claim = cjson.decode(ARGV[1])
local clock = redis.call('TIME')
-- cjson writes 14 digits, so times are counted from a later origin than 1970.
local now = tonumber(clock[1]) - 1700000000 + tonumber(clock[2]) / 1e6
local raw = redis.call('GET', KEYS[1])
local state = raw and cjson.decode(raw) or nil
local me = claim.member
local about = redis.pcall('INFO', 'server')
local run = type(about) == 'string' and string.match(about, 'run_id:(%w+)') or ''
local settling = now + LEASE_SECONDS

local function name(slot) return string.format('%.0f', slot) end

local function set_back()
  local late = state.at - now
  state.at = now
  if late <= 0 then return end
  state.settling, state.paused = state.settling - late, state.paused - late
  for _, member in pairs(state.members) do member[1] = member[1] - late end
  for index, rate in ipairs(claim.rates) do
    local moved, slots = {}, math.floor(late / (rate.seconds / SLOTS))
    for slot, amount in pairs(state.used[tostring(index - 1)] or {}) do moved[name(tonumber(slot) - slots)] = amount end
    state.used[tostring(index - 1)] = moved
  end
end

if state then
  set_back()
  if state.run ~= run then
    state.run, state.epoch, state.settling = run, claim.fresh, settling
  end
  settling = state.settling
  for id, member in pairs(state.members) do
    if member[1] <= now then state.members[id] = nil end
  end
  if state.settings ~= claim.settings then
    for id in pairs(state.members) do
      if id ~= me then return cjson.encode({conflict = state.settings}) end
    end
    state = nil
  elseif state.members[me] and state.members[me][4] >= claim.turn then
    return cjson.encode({stale = true})
  end
end
if not state then
  -- Until the leases of a ledger that was lost have ended, members get no more permits than they have.
  state = {settings = claim.settings, epoch = claim.fresh, members = {}, used = {}, paused = 0,
           settling = settling, run = run, at = now}
end

local before = state.members[me] and state.members[me][4] or 0

local function share(wanted, limit)
  local left, order = limit, {}
  for id in pairs(wanted) do order[#order + 1] = id end
  table.sort(order, function(a, b)
    if wanted[a] ~= wanted[b] then return wanted[a] < wanted[b] end
    return a < b
  end)
  for place, id in ipairs(order) do
    local rest = #order - place + 1
    if wanted[id] * rest > left then
      local sharing, index = {}, 0
      for i = place, #order do sharing[#sharing + 1] = order[i] end
      table.sort(sharing)
      for i, each in ipairs(sharing) do
        if each == me then index = i - 1 end
      end
      local turn = (index + math.floor(now / TURN_SECONDS)) % rest
      return math.floor(left / rest) + (turn < left % rest and 1 or 0)
    end
    if id == me then break end
    left = left - wanted[id]
  end
  return wanted[me]
end

local function permits()
  local found = -1
  if claim.most >= 0 then
    local limit, held, needed, wanted = claim.most, 0, 0, {}
    for id, member in pairs(state.members) do
      if id ~= me then
        held, needed, wanted[id] = held + member[2], needed + math.max(member[2], member[3]), member[3]
      end
    end
    wanted[me] = claim.wanted
    found = math.max(math.min(share(wanted, limit), limit - held), 0)
    if state.settling > now then
      found = math.min(found, claim.ceiling)
    else
      found = found + math.max(math.min(claim.spare, limit - needed - found), 0)
    end
  end
  state.members[me] = {now + LEASE_SECONDS, math.max(found, claim.ceiling), claim.wanted, claim.turn}
  return found
end

local function add(used, when, width, amount)
  if amount <= 0 then return end
  local slot = name(math.floor(when / width))
  used[slot] = (used[slot] or 0) + amount
end

local function take_back(used, rate)
  local seconds = rate.seconds
  for _, back in ipairs(rate.back) do
    local first, amount, order = back[1], back[2], {}
    if (first + 1) * (seconds / SLOTS) + seconds > now then
      for each in pairs(used) do
        if tonumber(each) >= first then order[#order + 1] = each end
      end
      table.sort(order, function(a, b) return tonumber(a) < tonumber(b) end)
    end
    for _, each in ipairs(order) do
      local taken = math.min(used[each], amount)
      used[each], amount = used[each] - taken, amount - taken
      if used[each] <= 0 then used[each] = nil end
      if amount <= 0 then break end
    end
  end
end

local function tokens(used, rate)
  local seconds = rate.seconds
  local width = seconds / SLOTS
  for slot in pairs(used) do
    if (tonumber(slot) + 1) * width + seconds <= now then used[slot] = nil end
  end
  local settled = 0
  for _, each in ipairs(rate.settled) do
    if each[1] > before then settled = settled + each[2] end
  end
  add(used, now, width, settled)
  local room = rate.amount
  for _, amount in pairs(used) do room = room - amount end
  if state.paused > now then room = 0 end
  local granted = 0
  if room >= rate.least and room > 0 then granted = math.min(rate.take, room) end
  local ahead = math.max(math.min(rate.ahead, (room - granted) / AHEAD_SHARE), 0)
  add(used, now + rate.keep, width, granted)
  add(used, now + math.max(math.min(AHEAD_SECONDS, seconds / AHEAD_PARTS), rate.keep), width, ahead)
  return {granted, ahead}
end

local grant = {epoch = state.epoch, now = now, permits = permits(), tokens = {}}
state.paused = math.max(state.paused, now + claim.pause)
grant.paused = math.max(state.paused - now, 0)
local longest = LEASE_SECONDS
for index, rate in ipairs(claim.rates) do
  local place = tostring(index - 1)
  local used = state.used[place] or {}
  state.used[place] = used
  if claim.epoch == state.epoch then take_back(used, rate) end -- otherwise those were never counted here
  grant.tokens[index] = tokens(used, rate)
  longest = math.max(longest, rate.seconds * 2)
end
if claim.leave then state.members[me] = nil end
redis.call('SET', KEYS[1], cjson.encode(state), 'PX', math.ceil((longest + claim.pause) * 1000) + 60000)
return cjson.encode(grant)
"""
_BUDGET_BODY = """
local claim = cjson.decode(ARGV[1])
local clock = redis.call('TIME')
local now = tonumber(clock[1]) - 1700000000 + tonumber(clock[2]) / 1e6
local raw = redis.call('GET', KEYS[1])
local about = redis.pcall('INFO', 'server')
about = type(about) == 'string' and about or ''
local run, up = string.match(about, 'run_id:(%w+)') or '', tonumber(string.match(about, 'uptime_in_seconds:(%d+)'))
local state = raw and cjson.decode(raw)
if not state then
  state = {members = {}, run = run, settling = now + math.max(LEASE_SECONDS - (up or LEASE_SECONDS), 0)}
end
local late = math.max((state.at or now) - now, 0)
state.at, state.settling = now, state.settling - late
for _, member in pairs(state.members) do member['until'] = member['until'] - late end
if state.run ~= run then state.run, state.settling = run, now + LEASE_SECONDS end
for id, member in pairs(state.members) do
  if id ~= claim.member and member['until'] > now and member.settings ~= claim.settings then
    return cjson.encode({conflict = member.settings})
  end
end
local old = state.members[claim.member]
if old and old.turn >= claim.turn then return cjson.encode({stale = true}) end
if not old and claim.known then state.settling = now + LEASE_SECONDS end
local me = {turn = claim.turn, settings = claim.settings, ['until'] = claim.leave and 0 or now + LEASE_SECONDS,
            rows = claim.rows, failed = claim.failed, units = {}}
for unit, part in pairs(claim.units) do me.units[unit] = {part.spent, part.held} end
state.members[claim.member] = me
local grant, fits = {units = {}, rows = 0, failed = 0}, true
for unit, part in pairs(claim.units) do
  local spent, held, elsewhere = 0, 0, 0
  for id, member in pairs(state.members) do
    local its = member.units[unit] or {0, 0}
    spent, held = spent + its[1], held + its[2]
    if id ~= claim.member and member['until'] > now then elsewhere = elsewhere + its[2] end
  end
  local room = part.amount - spent - held
  grant.units[unit] = {0, spent, elsewhere, room}
  if part.take ~= 0 and room < part.least * (1 - 1e-9) then fits = false end
end
for unit, part in pairs(claim.units) do
  local room = grant.units[unit][4]
  if fits and room > 0 and state.settling <= now then
    local leased = math.min(part.take, room)
    leased = leased + math.max(math.min(part.ahead, (room - leased) / AHEAD_SHARE), 0)
    me.units[unit][2] = me.units[unit][2] + leased
    grant.units[unit][1] = leased
  end
end
for _, member in pairs(state.members) do
  grant.rows, grant.failed = grant.rows + member.rows, grant.failed + member.failed
end
redis.call('SET', KEYS[1], cjson.encode(state))
-- A Redis that is full evicts what has an expiry, so budgets have none. Those that are old are deleted here.
redis.call('ZADD', 'udf:guard:budgets', now, KEYS[1])
local oldest = now - BUDGET_DAYS * 86400
for _, name in ipairs(redis.call('ZRANGEBYSCORE', 'udf:guard:budgets', '-inf', oldest, 'LIMIT', 0, 10)) do
  redis.call('DEL', name)
  redis.call('ZREM', 'udf:guard:budgets', name)
end
return cjson.encode(grant)
"""


def _filled(body: str) -> str:
    for name, value in (
        ("LEASE_SECONDS", LEASE_SECONDS), ("TURN_SECONDS", TURN_SECONDS), ("BUDGET_DAYS", BUDGET_DAYS),
        ("SLOTS", SLOTS), ("AHEAD_SHARE", AHEAD_SHARE), ("AHEAD_SECONDS", AHEAD_SECONDS), ("AHEAD_PARTS", AHEAD_PARTS),
    ):  # fmt: skip
        body = body.replace(name, repr(value))
    return body


SCRIPT = _filled(_BODY)
"""Takes the name of the ledger as its key and a claim as JSON. Returns the grant as JSON."""
BUDGET_SCRIPT = _filled(_BUDGET_BODY)
"""The same for a BudgetLedger."""
