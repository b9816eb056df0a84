"""OpenAI's Python package as a client."""

import json
import os
import sys
import time

import openai
from openai import OpenAI

from served import LONG, SUM, SUM_ANSWER

URL, KEY = os.environ["SERVE_URL"], os.environ["SERVE_KEY"]
client = OpenAI(base_url=f"{URL}/v1", api_key=KEY, max_retries=0, timeout=60)
MODEL = client.models.list().data[0].id


def ask(text, **more):
    return client.chat.completions.create(model=MODEL, messages=[{"role": "user", "content": text}], **more)


def lists_the_model():
    assert client.models.retrieve(MODEL).object == "model"


def answers_whole_and_counts():
    answer = ask(SUM)
    assert answer.choices[0].message.content == SUM_ANSWER, answer
    assert answer.choices[0].finish_reason == "stop"
    usage = answer.usage
    assert usage.prompt_tokens > 5 and usage.completion_tokens > 5
    assert usage.total_tokens == usage.prompt_tokens + usage.completion_tokens
    assert ask(SUM).usage.prompt_tokens_details.cached_tokens == usage.prompt_tokens - 1


def streams_the_same_with_usage_at_the_end():
    chunks = list(ask(SUM, stream=True, stream_options={"include_usage": True}))
    *parts, last = chunks
    assert "".join(c.choices[0].delta.content or "" for c in parts) == SUM_ANSWER
    assert len(parts) > 5, "it came at once"
    assert parts[-1].choices[0].finish_reason == "stop"
    assert last.choices == [] and last.usage == ask(SUM).usage.model_copy(
        update={"prompt_tokens_details": last.usage.prompt_tokens_details}
    )
    # Without the option no part has figures.
    assert all(c.usage is None and c.choices for c in ask(SUM, stream=True))


def reasons_apart_from_the_answer():
    message = ask("Is 221 prime?", extra_body={"thinking": {"type": "enabled"}}).choices[0].message
    assert message.reasoning_content and message.content
    parts = list(ask("Is 221 prime?", stream=True, reasoning_effort="high"))
    reasoning = "".join(getattr(c.choices[0].delta, "reasoning_content", None) or "" for c in parts)
    assert reasoning == message.reasoning_content


TOOL = {
    "type": "function",
    "function": {
        "name": "divide",
        "description": "Divides",
        "parameters": {
            "type": "object",
            "additionalProperties": False,
            "required": ["number", "by"],
            "properties": {"number": {"type": "integer", "minimum": 0, "maximum": 999}, "by": {"enum": ["two", "three"]}},
        },
    },
}


def calls_a_forced_tool():
    # Duckling was never taught tools: only the grammar makes it call one.
    assert not ask(SUM, tools=[TOOL]).choices[0].message.tool_calls
    for choice in ["required", {"type": "function", "function": {"name": "divide"}}]:
        answer = ask("Is 221 prime?", tools=[TOOL], tool_choice=choice, parallel_tool_calls=False, max_tokens=500)
        assert answer.choices[0].finish_reason == "tool_calls", answer
        (call,) = answer.choices[0].message.tool_calls
        arguments = json.loads(call.function.arguments)
        assert call.function.name == "divide" and call.id
        assert 0 <= arguments["number"] <= 999 and arguments["by"] in ("two", "three")
    # What was called goes back, as every client does it.
    history = [
        {"role": "user", "content": "Is 221 prime?"},
        answer.choices[0].message,
        {"role": "tool", "tool_call_id": call.id, "content": "no"},
    ]
    assert client.chat.completions.create(model=MODEL, messages=history, tools=[TOOL], max_tokens=20).choices


def streams_a_tool_call_to_the_packages_own_accumulator():
    messages = [{"role": "user", "content": "Is 221 prime?"}]
    tool = {**TOOL, "function": {**TOOL["function"], "strict": True}}
    with client.chat.completions.stream(
        model=MODEL, messages=messages, tools=[tool], tool_choice="required", parallel_tool_calls=False, max_tokens=500
    ) as stream:
        deltas = [event for event in stream if event.type == "tool_calls.function.arguments.delta"]
        final = stream.get_final_completion()
    assert len(deltas) > 3, "arguments came at once"
    arguments = final.choices[0].message.tool_calls[0].function.parsed_arguments
    assert arguments["by"] in ("two", "three")


def keeps_to_a_schema():
    schema = {
        "type": "object",
        "additionalProperties": False,
        "required": ["prime", "divisors"],
        "properties": {
            "prime": {"type": "boolean"},
            "divisors": {"type": "array", "maxItems": 3, "items": {"type": "integer", "minimum": 1, "maximum": 99}},
        },
    }
    form = {"type": "json_schema", "json_schema": {"name": "answer", "strict": True, "schema": schema}}
    found = json.loads(ask("Is 221 prime?", response_format=form, max_tokens=200).choices[0].message.content)
    assert isinstance(found["prime"], bool) and all(1 <= n <= 99 for n in found["divisors"]), found
    assert set(found) == {"prime", "divisors"}


def gives_log_probabilities():
    content = ask(SUM, logprobs=True, top_logprobs=3).choices[0].logprobs.content
    text = b"".join(bytes(entry.bytes or b"") for entry in content).decode()
    assert text.startswith(SUM_ANSWER), text
    for entry in content:
        assert entry.logprob <= 0 and len(entry.top_logprobs) == 3
        assert entry.top_logprobs[0].token == entry.token
    plain = client.completions.create(model=MODEL, prompt="1 + 1 =", max_tokens=4, logprobs=2)
    assert len(plain.choices[0].logprobs.tokens) == plain.usage.completion_tokens


def repeats_itself_for_a_seed():
    def texts(**more):
        answer = ask("你好", temperature=3, n=3, max_tokens=12, **more)
        assert [c.index for c in answer.choices] == [0, 1, 2]
        return [c.message.content for c in answer.choices]

    first = texts(seed=11)
    assert first == texts(seed=11) and len(set(first)) > 1, first
    assert first != texts(seed=12)
    parts = {}
    for chunk in ask("你好", temperature=3, n=3, max_tokens=12, seed=11, stream=True):
        for choice in chunk.choices:
            parts[choice.index] = parts.get(choice.index, "") + (choice.delta.content or "")
    assert [parts[i] for i in range(3)] == first, (parts, first)


def stops_at_strings():
    before = SUM_ANSWER.split("18")[0]
    for stop in ["18", ["xyz", "18"]]:
        assert ask(SUM, stop=stop).choices[0].message.content == before
        assert "".join(c.choices[0].delta.content or "" for c in ask(SUM, stop=stop, stream=True)) == before
    cut = ask(LONG, max_completion_tokens=3)
    assert cut.choices[0].finish_reason == "length" and cut.usage.completion_tokens == 3


def raises(kind, call):
    try:
        call()
    except openai.APIStatusError as error:
        assert type(error) is kind, f"{type(error).__name__} instead of {kind.__name__}: {error}"
        return error
    raise AssertionError(f"{kind.__name__} was not raised")


def raises_the_packages_own_errors():
    stranger = client.with_options(api_key="not-the-key")
    error = raises(openai.AuthenticationError, lambda: stranger.models.list())
    assert error.code == "invalid_api_key" and KEY not in str(error)
    error = raises(openai.BadRequestError, lambda: ask(SUM, temperature=-1))
    assert error.param == "temperature"
    error = raises(openai.BadRequestError, lambda: ask("prime " * 3000))
    assert error.code == "context_length_exceeded"
    raises(openai.BadRequestError, lambda: client.chat.completions.create(model=MODEL, messages=[]))
    other = lambda: client.chat.completions.create(model="gpt-9", messages=[{"role": "user", "content": SUM}])
    assert raises(openai.NotFoundError, other).code == "model_not_found"
    raises(openai.NotFoundError, lambda: client.models.retrieve("gpt-9"))
    raises(openai.NotFoundError, lambda: client.embeddings.create(model=MODEL, input="x"))


def a_stream_that_is_closed_frees_its_place():
    # Sixteen long answers to one request: far more than the patience below.
    stream = ask(LONG, stream=True, n=16)
    for _, chunk in zip(range(5), stream):
        assert chunk.choices
    stream.close()
    begun = time.monotonic()
    assert ask(SUM).choices[0].message.content == SUM_ANSWER
    took = time.monotonic() - begun
    assert took < 2, f"the next answer took {took:.1f} s"


def main():
    for check in [
        lists_the_model,
        answers_whole_and_counts,
        streams_the_same_with_usage_at_the_end,
        reasons_apart_from_the_answer,
        calls_a_forced_tool,
        streams_a_tool_call_to_the_packages_own_accumulator,
        keeps_to_a_schema,
        gives_log_probabilities,
        repeats_itself_for_a_seed,
        stops_at_strings,
        raises_the_packages_own_errors,
        a_stream_that_is_closed_frees_its_place,
    ]:
        begun = time.monotonic()
        check()
        print(f"ok: {check.__name__.replace('_', ' ')} ({time.monotonic() - begun:.1f} s)", flush=True)


sys.exit(main())
