"""The Lua script of a ledger, which Redis runs for each claim. Redis's clock is the only one that it reads."""

from udf_server.limits.sharing.ledger import AHEAD_PARTS, AHEAD_SECONDS, AHEAD_SHARE, LEASE_SECONDS, TURN_SECONDS
from udf_server.limits.sharing.window import SLOTS

__all__ = ["BUDGET_DAYS", "SCRIPT"]

BUDGET_DAYS = 7
"""Redis forgets what a job has spent this long after its last claim."""

_BODY = """
local claim = cjson.decode(ARGV[1])
local clock = redis.call('TIME')
-- cjson writes 14 digits, so times are counted from a later origin than 1970.
local now = tonumber(clock[1]) - 1700000000 + tonumber(clock[2]) / 1e6
local raw = redis.call('GET', KEYS[1])
local about = redis.pcall('INFO', 'server')
about = type(about) == 'string' and about or ''
local run, up = string.match(about, 'run_id:(%w+)') or '', tonumber(string.match(about, 'uptime_in_seconds:(%d+)'))
local state = raw and cjson.decode(raw) or {members = {}, windows = {}, settings = '', at = now, settling = 0}
local name = claim.member

local function slot_name(slot) return string.format('%.0f', slot) end

local function set_back(late)
  state.settling, state.paused = state.settling - late, state.paused - late
  for _, member in pairs(state.members) do member['until'] = member['until'] - late end
  for index, rate in ipairs(claim.rates) do
    local window = state.windows[tostring(index)]
    if window then
      local moved, slots = {}, math.floor(late / (rate.seconds / SLOTS))
      for slot, amount in pairs(window.used) do moved[slot_name(tonumber(slot) - slots)] = amount end
      window.used, window.due = moved, window.due - late
    end
  end
end

if state.epoch then
  if state.at > now then set_back(state.at - now) end
  if state.run ~= run then state.run, state.epoch, state.settling = run, claim.fresh, now + LEASE_SECONDS end
end
state.at = now
for id, member in pairs(state.members) do
  if member['until'] <= now and not next(member.units) then
    state.members[id] = nil
  elseif id ~= name and member['until'] > now and member.settings ~= claim.settings then
    return cjson.encode({conflict = member.settings})
  end
end
local old = state.members[name]
local before = old and old.number or 0
if before >= claim.number then return cjson.encode({stale = true}) end
if state.settings ~= claim.settings or not state.epoch then
  -- Members may have leases of a ledger that was lost.
  local settles = claim.most >= 0 and LEASE_SECONDS or math.max(LEASE_SECONDS - (up or LEASE_SECONDS), 0)
  state.settings, state.epoch, state.run, state.paused, state.windows = claim.settings, claim.fresh, run, 0, {}
  state.settling = math.max(state.settling, now + settles)
end
if next(claim.units) and not old and claim.epoch ~= '' and claim.epoch ~= state.epoch then
  state.settling = now + LEASE_SECONDS
end
local me = {number = claim.number, settings = claim.settings, ['until'] = claim.leave and 0 or now + LEASE_SECONDS,
            places = 0, wanted = claim.wanted, rows = claim.rows, failed = claim.failed, units = {}}
for unit, part in pairs(claim.units) do me.units[unit] = {part.spent, part.held} end
state.members[name] = me

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
        if each == name then index = i - 1 end
      end
      local turn = (index + math.floor(now / TURN_SECONDS)) % rest
      return math.floor(left / rest) + (turn < left % rest and 1 or 0)
    end
    if id == name then break end
    left = left - wanted[id]
  end
  return wanted[name]
end

local function places()
  local limit, held, needed, wanted = claim.most, 0, 0, {}
  if limit < 0 then return -1 end
  for id, member in pairs(state.members) do
    wanted[id] = member.wanted
    if id ~= name then
      held, needed = held + member.places, needed + math.max(member.places, member.wanted)
    end
  end
  local found = math.max(math.min(share(wanted, limit), limit - held), 0)
  if state.settling > now then
    found = math.min(found, claim.ceiling)
  else
    found = found + math.max(math.min(claim.spare, limit - needed - found), 0)
  end
  me.places = math.max(found, claim.ceiling)
  return found
end

local function add(window, rate, keep, amount)
  if amount <= 0 then return end
  local slot = slot_name(math.floor((now + keep) / (rate.seconds / SLOTS)))
  window.used[slot] = (window.used[slot] or 0) + amount
  window.due = math.max(window.due, now) + amount * rate.seconds / rate.amount
end

local function take_back(window, rate)
  for _, back in ipairs(rate.back) do
    local first, amount, order = back[1], back[2], {}
    if (first + 1) * (rate.seconds / SLOTS) + rate.seconds > now then
      for each in pairs(window.used) do
        if tonumber(each) >= first then order[#order + 1] = each end
      end
      table.sort(order, function(a, b) return tonumber(a) < tonumber(b) end)
    end
    for _, each in ipairs(order) do
      local taken = math.min(window.used[each], amount)
      window.used[each], amount = window.used[each] - taken, amount - taken
      window.due = window.due - taken * rate.seconds / rate.amount
      if window.used[each] <= 0 then window.used[each] = nil end
      if amount <= 0 then break end
    end
  end
end

local function units_of(window, rate)
  local settled, room = 0, rate.amount
  for _, each in ipairs(rate.settled) do
    if each[1] > before then settled = settled + each[2] end
  end
  add(window, rate, 0, settled)
  for slot, amount in pairs(window.used) do
    if (tonumber(slot) + 1) * (rate.seconds / SLOTS) + rate.seconds <= now then
      window.used[slot] = nil
    else
      room = room - amount
    end
  end
  if type(rate.burst) == 'number' then
    local paced = rate.burst - math.max(window.due - now, 0) * rate.amount / rate.seconds
    if window.due <= now then paced = math.max(paced, rate.least) end
    room = math.min(room, paced)
  end
  if state.paused > now then room = 0 end
  local granted = 0
  if room >= rate.least and room > 0 then granted = math.min(rate.take, room) end
  local ahead = math.max(math.min(rate.ahead, (room - granted) / AHEAD_SHARE), 0)
  add(window, rate, rate.keep, granted)
  add(window, rate, math.max(math.min(AHEAD_SECONDS, rate.seconds / AHEAD_PARTS), rate.keep), ahead)
  return {granted, ahead}
end

local grant = {epoch = state.epoch, now = now, places = places(), rates = {}, units = {}, rows = 0, failed = 0}
state.paused = math.max(state.paused, now + claim.pause)
grant.paused = math.max(state.paused - now, 0)
local longest = LEASE_SECONDS
for index, rate in ipairs(claim.rates) do
  local place = tostring(index)
  local window = state.windows[place] or {used = {}, due = 0}
  state.windows[place] = window
  if claim.epoch == state.epoch then take_back(window, rate) end -- otherwise those were never counted here
  grant.rates[index] = units_of(window, rate)
  longest = math.max(longest, rate.seconds * 2)
end
local fits = true
for unit, part in pairs(claim.units) do
  local spent, held, elsewhere = 0, 0, 0
  for id, member in pairs(state.members) do
    local its = member.units[unit] or {0, 0}
    spent, held = spent + its[1], held + its[2]
    if id ~= name and member['until'] > now then elsewhere = elsewhere + its[2] end
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
if not claim.lasts then
  redis.call('SET', KEYS[1], cjson.encode(state), 'PX', math.ceil((longest + claim.pause) * 1000) + 60000)
  return cjson.encode(grant)
end
-- A Redis that is full evicts what has an expiry, so budgets have none. Those that are old are deleted here.
redis.call('SET', KEYS[1], cjson.encode(state))
redis.call('ZADD', 'udf:limits:budgets', now, KEYS[1])
local oldest = now - BUDGET_DAYS * 86400
for _, each in ipairs(redis.call('ZRANGEBYSCORE', 'udf:limits:budgets', '-inf', oldest, 'LIMIT', 0, 10)) do
  redis.call('DEL', each)
  redis.call('ZREM', 'udf:limits:budgets', each)
end
return cjson.encode(grant)
"""
_CONSTANTS = {
    "LEASE_SECONDS": LEASE_SECONDS, "TURN_SECONDS": TURN_SECONDS, "BUDGET_DAYS": BUDGET_DAYS, "SLOTS": SLOTS,
    "AHEAD_SHARE": AHEAD_SHARE, "AHEAD_SECONDS": AHEAD_SECONDS, "AHEAD_PARTS": AHEAD_PARTS,
}  # fmt: skip


def _filled(body: str) -> str:
    for name, value in _CONSTANTS.items():
        body = body.replace(name, repr(value))
    return body


SCRIPT = _filled(_BODY)
"""Takes the name of the ledger as its key and a claim as JSON. Returns the grant as JSON."""
