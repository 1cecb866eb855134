-- The second part of entering: a line of several places, or one that now gets a second.
local function standing(s)
  if s < front then return s end
  -- Only the first waiter asks again when a place may have lapsed.
  local first = s == front and due ~= NEVER
  return {1, s == NEVER and 0 or s, first and math.max(0, due - now) or -1}
end

local function fits()
  return front == NEVER and held + weight <= wanted
end

local function keep()
  local place = record
  local before, s = place.w, place.s
  if how >= 0 and s ~= how then return {2} end
  if weight > before then return {4} end
  if min_token > 0 then
    local spent = min_token + (math.max(token_count, 1) - 1)
    if spent > MOST then return {5} end
    last = math.max(last, spent)
  end
  local admitted = s < front
  far, changed = math.max(far, now + lease), true
  place.w, place.words = weight, words
  place.e = math.max(place.e, now + (admitted and lease or wait_lease))
  if before > weight then
    write(place) -- advance reads it
    if admitted then held = held - (before - weight) end
    advance(id)
    if not admitted and s < front then place.e = math.max(place.e, now + lease) end
  end
  write(place)
  return standing(s)
end

local function join()
  local barred_until = now < bar and call('ZSCORE', barred, id)
  if barred_until and now < tonumber(barred_until) then return {2} end
  if span > 0 and last < now - now % span then reached(line, span) end
  local s = math.max(last + 1, now, min_token)
  local spent = s + (math.max(token_count, 1) - 1)
  if spent > MOST then return {5} end
  local admitted = fits()
  local e = now + (admitted and lease or wait_lease)
  capacity, last, count, changed = wanted, spent, count + 1, true
  due, far = math.min(due, e), math.max(far, now + lease)
  write({id = id, w = weight, s = s, e = e, words = words}, true)
  if admitted then
    held = held + weight
  else
    front = math.min(front, s)
  end
  return standing(s)
end

local function enter()
  if count > 0 and capacity ~= wanted then return {3, capacity} end
  if record then return keep() end
  if how >= 0 then return {2} end
  if how == -1 and not fits() then return standing(NEVER) end
  return join()
end

local answer = enter()
if changed then save() end
announce()
return answer
