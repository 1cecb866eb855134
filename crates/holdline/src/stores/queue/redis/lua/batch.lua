-- Runs the operations of a batch in turn: see batch_head.lua. KEYS: the lines. ARGV[1] has a letter
-- for each: t(ry), q(ueue), k(eep), l(eave), b(ar and leave). Before it may be w, if the ticket has
-- other numbers than the one before, and a(gain), if the line had an operation before. ARGV[2] is
-- the reply_order_channel, ARGV[3] the time in ms to keep an idle line; then come the arguments of
-- each. Returns their replies in order; an error is the reply of its own operation and does not
-- stop the others.
if string.find(letters, '[klb]') then
  redis.pcall('GETEX', KEYS[1]) -- see enter_head.lua
end
local heads, answers, n, at = redis.pcall('MGET', unpack(KEYS)), {}, 1, 4
if heads.err then heads = {} end -- it is not allowed: each is read by itself
for _, letter in ipairs({string.byte(letters, 1, -1)}) do
  if letter == 119 then
    weight, wanted, lease, wait_lease, token_count, _, min_token, span =
      struct.unpack('<dddddddd', ARGV[at])
    at = at + 1
  elseif letter == 97 then
    heads[n] = nil
  else
    local line, head, ok, answer = KEYS[n], heads[n], true, nil
    -- MGET shows a key of another type as none. Taking a place notices that itself.
    if head == nil or not (head or letter == 113 or letter == 116) then
      ok, head = pcall(call, 'GET', line)
    end
    if not ok then
      answer = head
    elseif letter == 108 then
      ok, answer = pcall(leave, line, head, ARGV[at])
    elseif letter == 113 then
      ok, answer = pcall(enter, line, head, ARGV[at], -2)
    elseif letter == 116 then
      ok, answer = pcall(enter, line, head, ARGV[at], -1)
    elseif letter == 107 then
      ok, answer = pcall(enter, line, head, ARGV[at], (struct.unpack('<d', ARGV[at + 1])))
    else
      ok, answer = pcall(leave, line, head, ARGV[at], ARGV[at + 1])
    end
    if not ok and type(answer) ~= 'table' then answer = {err = tostring(answer)} end
    answers[n], n = answer, n + 1
    at = at + ((letter == 107 or letter == 98) and 2 or 1)
  end
end
return answers
