-- Runs the operations of a batch in turn: see batch_head.lua. KEYS: the lines. ARGV[1] has a letter
-- for each: e(nter), l(eave), b(ar and leave); ARGV[2] is the reply_order_channel; then come the
-- arguments of each. Returns their replies in order; an error is the reply of its own operation and
-- does not stop the others.
local answers, at = {}, 3
for n = 1, #ARGV[1] do
  local letter, ok, answer = string.byte(ARGV[1], n), false, nil
  if letter == 101 then
    ok, answer = pcall(enter, KEYS[n], ARGV[at], ARGV[at + 1])
    at = at + 2
  else
    local barred_for = letter == 98 and ARGV[at + 2] or nil
    ok, answer = pcall(leave, KEYS[n], ARGV[at], ARGV[at + 1], barred_for)
    at = at + (barred_for and 3 or 2)
  end
  if not ok and type(answer) ~= 'table' then answer = {err = tostring(answer)} end
  answers[n] = answer
end
return answers
