"""Drives a running server with the official anthropic package: whole answers, streams, tools, errors."""

import sys

import anthropic

client = anthropic.Anthropic(base_url=sys.argv[1], api_key="none", max_retries=0)
TOOLS = [{"name": "read", "description": "reads", "input_schema": {
    "type": "object", "properties": {"path": {"type": "string"}}}}]
THINKING = {"type": "enabled", "budget_tokens": 1024}


def user(text):
    return [{"role": "user", "content": text}]


plain = client.messages.create(model="scripted", max_tokens=50, messages=user("plain"))
assert plain.content[0].text == "Just text.", plain
assert plain.stop_reason == "end_turn"

whole = client.messages.create(model="scripted", max_tokens=1500, messages=user("hello"), thinking=THINKING)
assert [b.type for b in whole.content] == ["thinking", "text"], whole
assert whole.content[0].thinking == "A greeting."

with client.messages.stream(model="scripted", max_tokens=1500, messages=user("hello"), thinking=THINKING) as stream:
    text = "".join(stream.text_stream)
    final = stream.get_final_message()
assert text == "Hi there, friend!", text
assert [b.type for b in final.content] == ["thinking", "text"], final
assert final.usage.output_tokens == whole.usage.output_tokens

with client.messages.stream(
        model="scripted", max_tokens=1500, messages=user("files"), tools=TOOLS, thinking=THINKING) as stream:
    for _ in stream:
        pass
    final = stream.get_final_message()
assert final.stop_reason == "tool_use", final
uses = [b for b in final.content if b.type == "tool_use"]
assert [u.input for u in uses] == [{"path": "a.txt"}, {"path": "b.txt"}], uses

history = user("files") + [
    {"role": "assistant", "content": [b.model_dump(exclude_none=True) for b in final.content]},
    {"role": "user", "content": [
        {"type": "tool_result", "tool_use_id": u.id, "content": "a result"} for u in uses]}]
after = client.messages.create(
    model="scripted", max_tokens=1500, messages=history, tools=TOOLS, thinking=THINKING)
assert after.content[-1].text == "Done.", after

count = client.messages.count_tokens(model="scripted", messages=user("plain"))
assert count.input_tokens > 0
try:
    client.messages.create(model="other", max_tokens=5, messages=user("x"))
    raise AssertionError("not refused")
except anthropic.NotFoundError as error:
    assert error.body["error"]["type"] == "not_found_error", error
print("anthropic", anthropic.__version__)
