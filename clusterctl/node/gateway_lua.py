"""What HAProxy runs of ours while requests pass: it counts tokens, and finds models' names."""

# Reads the counts of tokens out of answers as they pass.
#
# - Of `usage` objects the largest counts: a request's own text, which /v1/responses repeats in its
#   answer, may have one as well. Within a text the quotes are escaped.
# - A stream has at least a token for each event but a few. One that ends before its last event,
#   whose usage nobody will see, has one for every four bytes of text (vLLM may send several tokens
#   in one event), and the prompt counts as `estimate` has it.
# - Nothing is searched for by patterns but what follows the word `usage`: an answer may have
#   megabytes of numbers.
USAGE_FILTER = r"""
local ends = { prompt_tokens = "prompt", input_tokens = "prompt",
  completion_tokens = "completion", output_tokens = "completion" }
local texts = { content = true, reasoning_content = true, reasoning = true, text = true,
  delta = true, thinking = true, arguments = true, partial_json = true }
local longest_usage, longest_event = 1024, 65536
local without_token = 8 -- Events of a whole stream: its begin, its end, its usage

local Usage = { id = "usage", flags = filter.FLT_CFG_FL_HTX }
Usage.__index = Usage

function Usage:new()
  return setmetatable({ rest = "", events = 0, weight = 0, prompt = 0, completion = 0 }, Usage)
end

function Usage:start_analyze(txn, channel)
  if channel:is_resp() then filter.register_data_filter(self, channel) end
end

function Usage:read(text)
  local at = 0
  while true do
    local _, last = text:find('"usage":', at + 1, true)
    if not last then return end
    at = last
    local object = text:sub(at + 1, at + longest_usage):match("^%s*(%b{})")
    for name, count in (object or ""):gmatch('"([a-z_]+)":%s*(%d+)') do
      local which = ends[name]
      if which and #count < 16 then self[which] = math.max(self[which], tonumber(count)) end
    end
  end
end

function Usage:count(lines)
  for event in lines:gmatch("data: ({[^\n]*)") do
    local size = 0
    for name, text in event:gsub("\\.", ".."):gmatch('"([a-z_]+)":%s*"([^"]*)') do
      if texts[name] then size = size + #text end
    end
    self.events = self.events + 1
    self.weight = self.weight + math.max(1, size // 4)
  end
end

function Usage:http_payload(txn, message)
  local data = message:body()
  if data == nil or #data == 0 then return end
  local text = self.rest .. data
  self:read(text)
  if self.events > 0 or text:find("data: {", 1, true) then
    local whole = text:match("^.*()\n")
    self:count(text:sub(1, whole or 0))
    self.rest = text:sub((whole or 0) + 1):sub(-longest_event)
  else
    self.rest = text:sub(-longest_usage)
  end
  local estimate = txn:get_var("txn.estimate") or 0
  txn:set_var("txn.prompt", math.max(self.prompt, estimate))
  txn:set_var("txn.completion", math.max(self.completion, self.weight))
end

function Usage:http_end(txn, message)
  if not message:is_resp() then return end
  local prompt, completion = self.prompt, math.max(self.completion, self.events - without_token)
  if self.events > 0 and prompt == 0 then
    prompt, completion = txn:get_var("txn.estimate") or 0, self.weight
  end
  txn:set_var("txn.prompt", prompt)
  txn:set_var("txn.completion", completion)
end

core.register_filter("usage", Usage, function(class) return class end)

-- What a request may have as tokens: one for four bytes, or for 64 of a picture or sound.
core.register_fetches("estimate", function(txn)
  local body = txn.f:req_body() or ""
  local plain = body:gsub("data:[%w/.+-]+;base64,[%w+/=]+", "")
  return (math.max(#body, txn.f:req_body_size() or 0) - #body + #plain) // 4
    + (#body - #plain) // 64
end)

-- The model of a form, such as one with a sound: its field comes before the file.
core.register_fetches("form_model", function(txn)
  local body = (txn.f:req_body() or ""):sub(1, 65536)
  return body:match('name="model"\r\n\r\n([^\r\n]+)') or ""
end)

-- The model that every reader of this request finds: it is JSON, has come whole, and names one,
-- plainly. vLLM takes the last of several, and UTF-16, which has zero bytes, as well.
core.register_fetches("only_model", function(txn)
  local body, kind = txn.f:req_body() or "", (txn.f:req_fhdr("content-type") or ""):lower()
  local kinds = txn.f:req_fhdr_cnt("content-type")
  if kinds ~= 1 or not kind:find("^application/json") then return "" end
  if #body < (txn.f:req_body_size() or 0) or body:find("\0", 1, true) then return "" end
  local depth, last, names = 0, 0, {}
  while true do
    local sign, text
    last, sign = select(2, body:find('([%[%]{}"])', last + 1))
    if not last then break end
    if sign == '"' then
      local first = last + 1
      repeat
        last, sign = select(2, body:find('(["\\])', last + 1))
        if not last then return "" end
        if sign == "\\" then last = last + 1 end
      until sign == '"'
      text = body:sub(first, last - 1)
      if depth == 1 and body:find("^%s*:", last + 1) then
        if text:find("\\", 1, true) then return "" end
        if text == "model" then
          table.insert(names, body:match('^%s*:%s*"([^"\\]*)"', last + 1) or "")
        end
      end
    else
      depth = depth + ((sign == "{" or sign == "[") and 1 or -1)
    end
  end
  return #names == 1 and names[1] or ""
end)
"""
