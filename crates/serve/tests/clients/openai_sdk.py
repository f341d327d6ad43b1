"""Drives a running server with the official openai package: whole answers, streams, tools, errors."""

import json
import sys

import openai

client = openai.OpenAI(base_url=sys.argv[1] + "/v1", api_key="none", max_retries=0)
TOOLS = [{"type": "function", "function": {"name": "read", "parameters": {
    "type": "object", "properties": {"path": {"type": "string"}}}}}]


def user(text):
    return [{"role": "user", "content": text}]


whole = client.chat.completions.create(model="scripted", messages=user("hello"), max_completion_tokens=50)
assert whole.choices[0].message.content == "Hi there, friend!", whole
assert whole.choices[0].message.reasoning_content == "A greeting.", whole
assert whole.choices[0].finish_reason == "stop"
assert whole.usage.completion_tokens_details.reasoning_tokens > 0

text, reasoning, finish, usage = "", "", None, None
stream = client.chat.completions.create(
    model="scripted", messages=user("hello"), stream=True, stream_options={"include_usage": True})
for chunk in stream:
    usage = chunk.usage or usage
    for choice in chunk.choices:
        assert finish is None, "nothing after the reason to finish"
        text += choice.delta.content or ""
        reasoning += getattr(choice.delta, "reasoning_content", None) or ""
        finish = choice.finish_reason
assert (text, reasoning, finish) == ("Hi there, friend!", "A greeting.", "stop"), (text, reasoning, finish)
assert usage.completion_tokens == whole.usage.completion_tokens

calls = {}
for chunk in client.chat.completions.create(model="scripted", messages=user("files"), tools=TOOLS, stream=True):
    for choice in chunk.choices:
        finish = choice.finish_reason
        for call in choice.delta.tool_calls or []:
            entry = calls.setdefault(call.index, {"id": call.id, "name": call.function.name, "arguments": ""})
            entry["arguments"] += call.function.arguments or ""
assert finish == "tool_calls"
assert [json.loads(c["arguments"]) for c in calls.values()] == [{"path": "a.txt"}, {"path": "b.txt"}], calls
assert len({c["id"] for c in calls.values()}) == 2

history = user("files") + [{"role": "assistant", "content": None, "tool_calls": [
    {"id": c["id"], "type": "function", "function": {"name": c["name"], "arguments": c["arguments"]}}
    for c in calls.values()]}]
history += [{"role": "tool", "tool_call_id": c["id"], "content": "a result"} for c in calls.values()]
after = client.chat.completions.create(model="scripted", messages=history, tools=TOOLS)
assert after.choices[0].message.content == "Done.", after

logs = client.chat.completions.create(
    model="scripted", messages=user("plain"), logprobs=True, top_logprobs=2, reasoning_effort="none")
assert logs.choices[0].message.content == "Just text."
assert "".join(t.token for t in logs.choices[0].logprobs.content) == "Just text."
assert len(logs.choices[0].logprobs.content[0].top_logprobs) == 2

done = client.completions.create(model="scripted", prompt="plain=>", max_tokens=9)
assert done.choices[0].text == "Just text."
assert [m.id for m in client.models.list().data][0] == "scripted"
try:
    client.chat.completions.create(model="scripted", messages=user("x"), response_format={"type": "json_object"})
    raise AssertionError("not refused")
except openai.BadRequestError as error:
    assert error.param == "response_format", error
try:
    client.chat.completions.create(model="other", messages=user("x"))
    raise AssertionError("not refused")
except openai.NotFoundError as error:
    assert error.code == "model_not_found", error
print("openai", openai.__version__)
