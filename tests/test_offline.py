"""What the stand-in model promises: its language, its strictness, its figures and its faults."""

from __future__ import annotations

import contextlib
import http.client
import json
import os
import re
import signal
import socket
import subprocess
import sys
import time
import urllib.error
import urllib.request
from pathlib import Path

import pytest

import offline
import offline_rules
import offline_script

REPOSITORY = Path(offline.__file__).parent


def tool(name: str, required: str = "", **fields: object) -> dict:
    properties = {key: kind if isinstance(kind, dict) else {"type": kind}
                  for key, kind in fields.items()}
    return {"name": name, "input_schema": {"type": "object", "properties": properties,
                                           "required": required.split()}}


TOOLS = [
    tool("bash", "command", command="string", timeout="integer"),
    tool("read", "path", path="string", start_line="integer", end_line="integer"),
    tool("write", "path content", path="string", content="string"),
    tool("edit", "path old_text new_text", path="string", old_text="string", new_text="string"),
    tool("grep", "pattern", path="string", pattern="string"),
    tool("todo_write", "tasks", tasks={"type": "array", "items": {"type": "string"}}),
    tool("todo_update", "id status", id="integer", status="string"),
    tool("spawn", "x", x="object"),
    tool("scale", "factor", factor="number", exact="boolean"),
    tool("status"),
]
SCHEMAS = {one["name"]: one["input_schema"] for one in TOOLS}
HEADERS = {"x-api-key": "key", "anthropic-version": "2023-06-01",
           "content-type": "application/json"}


@pytest.fixture
def server():
    with offline.start() as running:
        yield running


@pytest.fixture(scope="module")
def shared():
    """One server for tests that leave nothing behind."""
    with offline.start() as running:
        yield running


@pytest.fixture
def sdk(server):
    import anthropic
    with anthropic.Anthropic(api_key="x", base_url=server.url, max_retries=0, timeout=5) as client:
        yield client


def user(*content) -> dict:
    only = content[0] if len(content) == 1 and isinstance(content[0], str) else list(content)
    return {"role": "user", "content": only}


def assistant(*content) -> dict:
    return {**user(*content), "role": "assistant"}


def text(words: str, **more) -> dict:
    return {"type": "text", "text": words, **more}


def use(id: str = "t1", name: str = "bash", **given) -> dict:
    return {"type": "tool_use", "id": id, "name": name, "input": given}


def result(id: str = "t1", content: object = "fine", **more) -> dict:
    return {"type": "tool_result", "tool_use_id": id, "content": content, **more}


def request(*messages: dict, **more) -> dict:
    body = {"model": "m", "max_tokens": 1000, "messages": list(messages), "tools": TOOLS, **more}
    return {key: value for key, value in body.items() if value is not None}


def send(server, body, path="/v1/messages", headers=HEADERS) -> tuple[int, dict]:
    data = body if isinstance(body, bytes) else json.dumps(body).encode()
    asked = urllib.request.Request(server.url + path, data, headers)
    try:
        with urllib.request.urlopen(asked, timeout=5) as answer:
            return answer.status, json.load(answer)
    except urllib.error.HTTPError as error:
        with error:
            return error.code, json.load(error)


def ask(server, *messages, **more) -> dict:
    status, reply = send(server, request(*messages, **more))
    assert status == 200, reply
    return reply


def played(reply: dict) -> list:
    """The reply in short: texts, and calls as (name, input)."""
    return [block["text"] if block["type"] == "text" else (block["name"], block["input"])
            for block in reply["content"]]


def answers(reply: dict, content: str = "fine") -> list[dict]:
    return [result(block["id"], content) for block in reply["content"]
            if block["type"] == "tool_use"]


def converse(server, messages: list[dict], **more) -> list[list]:
    """Play a turn to its end; returns each reply in short and extends `messages`."""
    replies = []
    while True:
        reply = ask(server, *messages, **more)
        replies.append(played(reply))
        messages.append({"role": "assistant", "content": reply["content"]})
        if not answers(reply):
            return replies
        messages.append(user(*answers(reply)))


# ------------------------------------------------------------------ the language

def only_call(source: str) -> tuple:
    step = offline_script.read_step(source, SCHEMAS)
    assert step and len(step.calls) == 1 and not step.text
    return step.calls[0]


@pytest.mark.parametrize("source, name, given", [
    ("bash ls -la | head -2", "bash", {"command": "ls -la | head -2"}),
    ("grep foo", "grep", {"pattern": "foo"}),  # the first required field, not the first field
    ("grep src :: foo", "grep", {"path": "src", "pattern": "foo"}),
    ("grep  ::  foo", "grep", {"pattern": "foo"}),
    ("status", "status", {}),
    ("status now", "status", {}),
    ("read a.py :: 3 :: 9", "read", {"path": "a.py", "start_line": 3, "end_line": 9}),
    ("read a.py :: :: 9", "read", {"path": "a.py", "end_line": 9}),
    ("read path=a b.py start_line=3", "read", {"path": "a b.py", "start_line": 3}),
    ("bash PATH=/x command=y make", "bash", {"command": "PATH=/x command=y make"}),
    ("write path='a b' content=\"x = 1\"", "write", {"path": "a b", "content": "x = 1"}),
    ('todo_write {"tasks": ["a ;; b", "c ++ d"]}', "todo_write", {"tasks": ["a ;; b", "c ++ d"]}),
    ('todo_write ["a", "b"]', "todo_write", {"tasks": ["a", "b"]}),
    ("todo_write buy milk", "todo_write", {"tasks": ["buy milk"]}),
    ("todo_update 2 :: done", "todo_update", {"id": 2, "status": "done"}),
    ("todo_update two :: done", "todo_update", {"id": "two", "status": "done"}),
    ('spawn {"y": 1}', "spawn", {"x": {"y": 1}}),
    ('spawn {"x": {"y": 1}}', "spawn", {"x": {"y": 1}}),
    ("scale 1.5 :: true", "scale", {"factor": 1.5, "exact": True}),
    ("scale NaN :: 1", "scale", {"factor": "NaN", "exact": "1"}),
    ('bash "printf \\"a\\\\n\\""', "bash", {"command": 'printf "a\\n"'}),
    ("bash 'a\\n'", "bash", {"command": "a\\n"}),
    ('bash "a" "b"', "bash", {"command": '"a" "b"'}),
    ("edit a.py :: x :: y :: z", "edit", {"path": "a.py", "old_text": "x", "new_text": "y :: z"}),
    ("edit a.py :: x ::", "edit", {"path": "a.py", "old_text": "x", "new_text": ""}),
    ("edit a.py :: 'x :: y' :: \"p\\nq\"", "edit",
     {"path": "a.py", "old_text": "x :: y", "new_text": "p\nq"}),
    ("bash echo std::string; x++; y", "bash", {"command": "echo std::string; x++; y"}),
    ("bash {broken json", "bash", {"command": "{broken json"}),
    ("call nothing", "nothing", {}),
    ('call no_such {"a": 1}', "no_such", {"a": 1}),
    ("write a.html :: <b>x</b>", "write", {"path": "a.html", "content": "<b>x</b>"}),
    ("write a.py :: 'one\n# two ;; x\n'", "write",
     {"path": "a.py", "content": "one\n# two ;; x\n"}),
])
def test_a_line_becomes_a_call_with_typed_fields(source, name, given):
    assert only_call(source) == (name, given)


@pytest.mark.parametrize("source", ["hello there", "say", "call x [1]", "read a ++ dance",
                                    "BASH ls"])
def test_words_that_are_no_command_cannot_be_played(source):
    assert offline_script.read_step(source, SCHEMAS) is None


@pytest.mark.parametrize("prompt, expected", [
    ("bash a ;; bash b", ["bash a", "bash b"]),
    ("bash a\nbash b", ["bash a", "bash b"]),
    ("bash a ;;\nbash b", ["bash a", "bash b"]),
    ("bash a;; b", ["bash a;; b"]),
    ("# don't ;; 'never\nbash b", ["bash b"]),
    ("bash echo 'a ;; b' ;; bash c", ["bash echo 'a ;; b'", "bash c"]),
    ('bash echo "a \\" ;; b" ;; bash c', ['bash echo "a \\" ;; b"', "bash c"]),
    ("bash echo `a ;; b` ;; bash c", ["bash echo `a ;; b`", "bash c"]),
    ("say don't ;; say won't", ["say don't", "say won't"]),
    ("say I 'quote and never close ;; bash b", ["say I 'quote and never close", "bash b"]),
    ('bash echo "oops\nbash b\nbash echo "x"', ['bash echo "oops', "bash b", 'bash echo "x"']),
    ('write a :: "x\ny" ;; bash b', ['write a :: "x\ny"', "bash b"]),
    ('todo_write {"tasks": [\n"a",\n"b ;; c"]}\nbash b',
     ['todo_write {"tasks": [\n"a",\n"b ;; c"]}', "bash b"]),
])
def test_separators_count_only_outside_quotes_and_json(prompt, expected):
    assert offline_script.sources(prompt) == expected


def test_two_calls_joined_by_plus_signs_are_one_reply(shared):
    reply = ask(shared, user("say Both. ++ read a ++ read b"))
    assert played(reply) == ["Both.", ("read", {"path": "a"}), ("read", {"path": "b"})]
    assert reply["stop_reason"] == "tool_use"
    assert len({block["id"] for block in reply["content"][1:]}) == 2


def test_a_hundred_thousand_characters_of_quotes_and_brackets_are_read_quickly():
    began = time.process_time()
    offline_script.sources("bash " + "' \" [ { `" * 11_000)
    assert time.process_time() - began < 2


# ------------------------------------------------------------------ playing

def test_each_step_is_one_reply_and_the_end_tells_what_came_back(shared):
    replies = converse(shared, [user("bash a ;; read b\nsay Done.")])
    assert replies == [[("bash", {"command": "a"})], [("read", {"path": "b"})], ["Done."]]
    *_, [last] = converse(shared, [user("bash a ;; read b")])
    assert last == "Played 2 calls.\n- bash a: fine\n- read b: fine"


def test_the_closing_report_is_short_marks_errors_and_counts(shared):
    messages = [user(" ;; ".join(f"bash echo {n} {'x' * 90}" for n in range(30)))]
    for _ in range(30):
        reply = ask(shared, *messages)
        messages += [{"role": "assistant", "content": reply["content"]},
                     user({**answers(reply, "bad " * 90)[0], "is_error": True})]
    [report] = played(ask(shared, *messages))
    assert report.startswith("Played 30 calls. The last 5:") and "error: bad" in report
    assert len(report) < 600 and report.count("\n") == 5


def test_say_before_a_call_becomes_the_text_of_that_reply(shared):
    assert converse(shared, [user("say One\nsay Two\nbash a\nsay End")]) == [
        ["One\nTwo", ("bash", {"command": "a"})], ["End"]]


def test_the_same_request_gets_the_same_reply(shared):
    body = request(user("bash a"))
    first, second = send(shared, body)[1], send(shared, body)[1]
    assert first == second
    assert first["id"].startswith("msg_")
    assert re.fullmatch(r"toolu_[0-9a-f]+", first["content"][0]["id"])


def test_words_it_cannot_play_get_a_friendly_answer_with_an_example_of_each_tool(shared):
    reply = ask(shared, user("please fix the bug"))
    [answer] = played(reply)
    assert reply["stop_reason"] == "end_turn"
    for part in ("stand-in", '"please fix the bug"', "ANTHROPIC_API_KEY", "\n  bash COMMAND\n",
                 "\n  edit PATH :: OLD_TEXT :: NEW_TEXT\n", "\n  status\n", "\n  grep PATTERN\n"):
        assert part in answer


def test_every_example_in_the_friendly_answer_can_be_played():
    for name, schema in SCHEMAS.items():
        assert offline_script.read_step(offline_script.example(name, schema), SCHEMAS), name


def test_one_unplayable_step_is_named_and_nothing_is_run(shared):
    [answer] = played(ask(shared, user("bash a ;; dance wildly ;; bash b")))
    assert '"dance wildly"' in answer


def test_a_new_prompt_replaces_what_was_left(shared):
    first = ask(shared, user("bash a ;; bash b"))
    messages = [user("bash a ;; bash b"), assistant(*first["content"]), user(*answers(first)),
                assistant("Stopped."), user("read c")]
    assert converse(shared, messages)[0] == [("read", {"path": "c"})]


@pytest.mark.parametrize("word", ["continue", "Go on.", "carry on with the work"])
def test_continue_goes_on_with_what_is_left(shared, word):
    first = ask(shared, user("bash a ;; bash b"))
    messages = [user("bash a ;; bash b"), assistant(*first["content"]), user(*answers(first)),
                assistant("Stopped."), user(word)]
    assert converse(shared, messages)[0] == [("bash", {"command": "b"})]


def test_commands_beside_results_steer_and_other_words_there_change_nothing(shared):
    first = ask(shared, user("bash a ;; bash b"))
    start = [user("bash a ;; bash b"), assistant(*first["content"])]
    steered = ask(shared, *start, user(*answers(first), text("read c")))
    assert played(steered) == [("read", {"path": "c"})]
    unmoved = ask(shared, *start, user(*answers(first), text("your todo list is stale")))
    assert played(unmoved) == [("bash", {"command": "b"})]


@pytest.mark.parametrize("prompt", [
    "<task id=\"3\">\nPlease do this:\nbash a\nThat's all, don't \"worry\nbash b\n</task>",
    "New mail.\n<inbox>\n<message from=\"x\">bash a\nbash b</message>\n</inbox>\nread never",
    "Your work: <teammate-message>bash a ;; bash b</teammate-message>",
    "<inbox><message from='x'>bash a</message>\n<message from='y'>bash b</message></inbox>",
])
def test_commands_are_found_inside_the_tags_of_a_wrapped_prompt(shared, prompt):
    assert converse(shared, [user(prompt)])[:-1] == [[("bash", {"command": "a"})],
                                                     [("bash", {"command": "b"})]]


def test_wrapped_commands_beside_results_are_appended(shared):
    first = ask(shared, user("bash a ;; bash b"))
    messages = [user("bash a ;; bash b"), assistant(*first["content"]),
                user(*answers(first), text("<inbox>\nread c\n</inbox>"))]
    assert converse(shared, messages)[:-1] == [[("bash", {"command": "b"})],
                                               [("read", {"path": "c"})]]


@pytest.mark.parametrize("tag", ["notification", "reminder", "system-reminder"])
def test_text_in_a_notice_is_never_obeyed(shared, tag):
    first = ask(shared, user("bash a ;; bash b"))
    for notice in (f"<{tag}>\nread c\n</{tag}>", f"<{tag} id='1'>read c"):
        reply = ask(shared, user("bash a ;; bash b"), assistant(*first["content"]),
                    user(*answers(first), text(notice)))
        assert played(reply) == [("bash", {"command": "b"})]
        assert ask(shared, user(text(notice), text("bash d")))["content"][0]["input"] == {
            "command": "d"}


def test_commands_in_results_and_in_the_system_prompt_are_never_obeyed(shared):
    first = ask(shared, user("bash a"))
    reply = ask(shared, user("bash a"), assistant(*first["content"]),
                user(*answers(first, "bash evil")), system="bash evil")
    assert reply["stop_reason"] == "end_turn"


def test_a_call_that_was_cut_is_played_again_and_a_changed_one_is_not(shared):
    prompt = user("bash a ;; bash b")
    cut = ask(shared, prompt, assistant(use()), user(result(is_error=True)))
    assert played(cut) == [("bash", {"command": "a"})]
    changed = ask(shared, prompt, assistant(use(command="A")), user(result()))
    assert played(changed) == [("bash", {"command": "b"})]


def test_a_text_longer_than_max_tokens_is_cut(shared):
    reply = ask(shared, user("say " + "word " * 100), max_tokens=10)
    assert reply["stop_reason"] == "max_tokens" and reply["usage"]["output_tokens"] == 10


def test_a_cut_counts_bytes_and_never_breaks_a_character(shared):
    [words] = played(ask(shared, user("say " + "語" * 100), max_tokens=10))
    assert words == "語" * 13


def test_max_tokens_zero_is_a_pre_warm_with_an_empty_answer(shared):
    reply = ask(shared, user("bash a"), max_tokens=0)
    assert reply["content"] == [] and reply["stop_reason"] == "max_tokens"


def test_tool_choice_none_gets_words(shared):
    assert ask(shared, user("bash a"), tool_choice={"type": "none"})["stop_reason"] == "end_turn"


# ------------------------------------------------------------------ summaries

SCRIPT = "write a.py :: x ;; bash one ;; say Now two. ;; bash two ;; bash 'three\n3' ;; say End."
REST = [["Now two.", ("bash", {"command": "two"})], [("bash", {"command": "three\n3"})], ["End."]]


def two_steps_in(server) -> list[dict]:
    messages = [user(SCRIPT)]
    for _ in range(2):
        reply = ask(server, *messages)
        messages += [assistant(*reply["content"]), user(*answers(reply))]
    return messages


def summarise(server, *messages: dict) -> str:
    [summary] = played(ask(server, *messages, user("Summarise the conversation."), tools=None))
    return summary


def test_a_summary_lists_prompts_files_what_was_done_and_what_is_left(shared):
    summary = summarise(shared, *two_steps_in(shared))
    assert summary == "\n".join([
        "User prompts:", "- " + " ".join(SCRIPT.split()), "Files:", "- a.py", "Done:",
        "- write a.py x: fine", "- bash one: fine", "Steps not yet played:", "<steps>",
        "say Now two.", "bash two", "bash 'three\n3'", "say End.", "</steps>"])


def test_after_a_compaction_each_remaining_step_is_played_once(shared):
    summary = summarise(shared, *two_steps_in(shared))
    compacted = [user(f"The story so far:\n{summary}"), assistant("Understood."),
                 user("Please carry on with the work.")]
    assert converse(shared, compacted) == REST


def test_the_tail_kept_after_a_compaction_counts_as_played(shared):
    messages = two_steps_in(shared)
    for kept in (2, 4):  # one and two exchanges
        summary = summarise(shared, *messages[:-kept])
        compacted = [user(summary), assistant("Understood."), *messages[-kept:]]
        assert converse(shared, compacted) == REST


def test_a_tail_that_the_summary_covers_too_is_not_counted_twice(shared):
    messages = two_steps_in(shared)
    compacted = [user(summarise(shared, *messages)), assistant("Understood."), *messages[-2:]]
    assert converse(shared, compacted) == REST


def test_a_second_compaction_keeps_the_files_and_the_steps(shared):
    first = summarise(shared, *two_steps_in(shared))
    messages = [user(first)]
    reply = ask(shared, *messages)
    messages += [assistant(*reply["content"]), user(*answers(reply))]
    second = summarise(shared, *messages)
    assert "- a.py" in second and "- write a.py x: fine" in second and "- bash two" in second
    assert "<steps>\nbash 'three\n3'\nsay End.\n</steps>" in second
    assert converse(shared, [user(second)]) == REST[1:]


def test_a_conversation_dumped_as_json_in_one_message_is_summarised(shared):
    dump = json.dumps(two_steps_in(shared))
    [summary] = played(ask(shared, user(f"Summarise:\n<conversation>\n{dump}\n</conversation>"),
                           tools=None))
    assert "- a.py" in summary
    assert converse(shared, [user(summary)]) == REST


def test_a_steps_block_in_a_dump_of_another_form_is_carried_over(shared):
    [summary] = played(ask(shared, user("Compact this: … <steps>\nbash a\n</steps> …"),
                           tools=None))
    assert converse(shared, [user(summary)])[0] == [("bash", {"command": "a"})]
    [summary] = played(ask(shared, user("Summarize:\nuser: bash a ;; bash b\n"), tools=None))
    assert "<steps>\nbash a\nbash b\n</steps>" in summary


def test_a_prompt_that_was_answered_with_the_friendly_text_leaves_no_steps(shared):
    messages = [user("please fix it")]
    converse(shared, messages)
    assert "<steps>\n</steps>" in summarise(shared, *messages)


def test_a_summary_cut_to_max_tokens_keeps_its_steps(shared):
    messages = [*two_steps_in(shared), user("Summarise the conversation.")]
    reply = ask(shared, *messages, tools=None, max_tokens=40)
    assert reply["stop_reason"] == "end_turn"
    assert converse(shared, [user(*reply["content"])]) == REST


def test_tags_inside_a_quoted_value_survive_a_summary(shared):
    page = "write a.html :: '<div>\n<b>bash x</b>\n</div>'"
    messages = [user(f"bash a ;; {page}")]
    reply = ask(shared, *messages)
    messages += [assistant(*reply["content"]), user(*answers(reply))]
    summary = summarise(shared, *messages)
    assert converse(shared, [user(summary)])[0] == [
        ("write", {"path": "a.html", "content": "<div>\n<b>bash x</b>\n</div>"})]


def test_a_new_prompt_after_a_summary_replaces_its_steps(shared):
    summary = summarise(shared, *two_steps_in(shared))
    assert converse(shared, [user(summary), user("read z")])[0] == [("read", {"path": "z"})]


# ------------------------------------------------------------------ the API's rules

HI, CALL, BACK = user("say hi"), assistant(use(command="a")), user(result())
BLANK = tool("bash")
MARK = {"type": "ephemeral"}
HOUR = {"type": "ephemeral", "ttl": "1h"}


def with_tool(**more) -> dict:
    return request(HI, tools=[{**BLANK, **more}])


@pytest.mark.parametrize("body, message", [
    (b"{broken", "The request body is not valid JSON"),
    (b'{"max_tokens": NaN}', "The request body is not valid JSON"),
    (b"[1]", "body: Input should be a valid dictionary"),
    (request(HI, model=None), "model: Field required"),
    (request(HI, max_tokens=None), "max_tokens: Field required"),
    ({"model": "m", "max_tokens": 1}, "messages: Field required"),
    (request(HI, colour="red"), "colour: Extra inputs are not permitted"),
    (request(HI, model=5), "model: Input should be a valid"),
    (request(HI, max_tokens="5"), "max_tokens: Input should be a valid int"),
    (request(HI, max_tokens=True), "max_tokens: Input should be a valid int"),
    (request(HI, max_tokens=-1), "max_tokens: Input should be at least 0"),
    (request(HI, messages="hi"), "messages: Input should be a valid list"),
    (request(), "messages: at least one message is required"),
    (request({"role": "user", "content": 5}), "messages.0.content: Input should be"),
    (request({"role": "user"}), "messages.0.content: Field required"),
    (request({**HI, "id": "m1"}), "messages.0.id: Extra inputs are not permitted"),
    (request(assistant("x"), HI), 'first message must use the "user" role'),
    (request(HI, {"role": "tool", "content": "x"}), 'Unexpected role "tool"'),
    (request(user("")), "messages.0: all messages must have non-empty content"),
    (request({"role": "user", "content": []}), "all messages must have non-empty content"),
    (request(HI, {"role": "assistant", "content": []}, HI), "messages.1: all messages must have"),
    (request(user(text(""))), "text content blocks must be non-empty"),
    (request(user(" \n")), "text content blocks must contain non-whitespace text"),
    (request(HI, assistant(text("\n")), HI), "must contain non-whitespace text"),
    (request(user(text("", cache_control=MARK))), "cache_control cannot be set for empty text"),
    (request(HI, assistant("x ")), "final assistant content cannot end with trailing whitespace"),
    (request(HI, assistant("x")), "does not support assistant message prefill"),
    (request(HI, CALL), "messages.1: `tool_use` ids were found without `tool_result` blocks "
                        "immediately after: t1."),
    (request(HI, CALL, HI), "`tool_use` ids were found without `tool_result`"),
    (request(HI, assistant(use("t1"), use("t2")), BACK), "immediately after: t2."),
    (request(user(result())), "messages.0.content.0: unexpected `tool_use_id` found"),
    (request(HI, CALL, BACK, assistant("x"), BACK), "messages.4.content.0: unexpected"),
    (request(HI, CALL, user(result(), result())), "each tool_use must have a single result"),
    (request(HI, CALL, user(text("x"), result())), "must come first"),
    (request(HI, CALL, BACK, CALL, BACK), "messages.3: `tool_use` ids must be unique"),
    (request(HI, assistant(use("a.b")), user(result("a.b"))), "tool_use.id: String should match"),
    (request(HI, assistant(use(name="a b")), BACK), "tool_use.name: String should match"),
    (request(HI, assistant({**use(), "input": "{"}), BACK), "tool_use.input: Input should be"),
    (request(user(use())), "`tool_use` blocks are not allowed in `user` content"),
    (request(HI, assistant(result())), "`tool_result` blocks are not allowed in `assistant`"),
    (request(user({"type": "video"})), "Input tag 'video' found"),
    (request(user({"type": ["text"]})), "Input tag"),
    (request(user("hi", 5)), "messages.0.content"),
    (request(user(text("x", note=1))), "text.note: Extra inputs are not permitted"),
    (request(HI, CALL, user(result(content=[text("")]))), "text content blocks must be non-empty"),
    (request(HI, CALL, user(result(content=5))), "tool_result.content: Input should be"),
    (request(HI, assistant({"type": "thinking", "thinking": "x"}), HI),
     "messages.1.content.0.thinking.signature: Field required"),
    (request(HI, system=[use()]), "`tool_use` blocks are not allowed in `system` content"),
    (with_tool(name="a b"), "tools.0.custom.name: String should match pattern"),
    (request(HI, tools=[BLANK, BLANK]), "tools: Tool names must be unique."),
    (request(HI, tools=[{"name": "x"}]), "tools.0.custom.input_schema: Field required"),
    (with_tool(input_schema={"type": "array"}), "input_schema.type: Input should be 'object'"),
    (with_tool(input_schema={"type": "object", "anyOf": []}), "does not support oneOf, allOf"),
    (with_tool(input_schema={"type": "object", "properties": 5}), "JSON schema is invalid"),
    (with_tool(read_only=True), "tools.0.custom.read_only: Extra inputs are not permitted"),
    (request(user(*[text("x", cache_control=MARK)] * 5)), "Found 5."),
    (request(user(*[text("x", cache_control=MARK)] * 4), cache_control=MARK), "Found 5."),
    (request(user(text("x", cache_control={"type": "ephemeral", "ttl": "2h"}))), "cache_control"),
    (request(user(text("x", cache_control=MARK), text("y", cache_control=HOUR))), "ttl='1h'"),
    (request(user(text("x", cache_control=MARK)), cache_control=HOUR), "another ttl"),
    (request(user("say " + "x" * 900_000)), "prompt is too long: 225"),
])
def test_a_request_that_breaks_a_rule_is_refused_in_the_words_of_the_api(shared, body, message):
    status, answer = send(shared, body)
    assert (status, answer["type"]) == (400, "error"), answer
    assert answer["error"]["type"] == "invalid_request_error"
    assert message in answer["error"]["message"]
    assert re.fullmatch(r"req_\w+", answer["request_id"])
    assert shared.errors.pop() == answer["error"]["message"]


@pytest.mark.parametrize("without, status, kind", [
    ("x-api-key", 401, "authentication_error"),
    ("anthropic-version", 400, "invalid_request_error")])
def test_key_and_version_headers_are_required(server, without, status, kind):
    headers = {name: value for name, value in HEADERS.items() if name != without}
    got, answer = send(server, request(HI), headers=headers)
    assert (got, answer["error"]["type"]) == (status, kind)


def test_sampling_parameters_end_with_api_version_2026_10_21(server):
    newer = {**HEADERS, "anthropic-version": "2026-10-21"}
    assert send(server, request(HI, temperature=1.0))[0] == 200
    for name in ("temperature", "top_p", "top_k"):
        status, answer = send(server, request(HI, **{name: 1}), headers=newer)
        assert (status, answer["error"]["message"]) == (
            400, f"{name}: Extra inputs are not permitted")


def test_a_body_over_32_megabytes_is_refused_with_413(server):
    status, answer = send(server, b" " * (offline_rules.BODY_LIMIT + 1))
    assert (status, answer["error"]["type"]) == (413, "request_too_large")


@pytest.mark.parametrize("body", [
    request(HI, CALL, user(result("t1")), HI),
    request(HI, assistant(use("t1"), use("t2")), user(result("t1")), user(result("t2"))),
    request(HI, CALL, user({"type": "tool_result", "tool_use_id": "t1"})),
    request(HI, CALL, user(result(content="", is_error=True))),
    request(HI, CALL, user(result(), text("and now"))),
    request(HI, HI, assistant("x"), assistant("y"), HI),
    request(HI, system=[text("be brief", cache_control=HOUR)], cache_control=MARK),
    request(HI, tools=[{"type": "web_search_20250305", "name": "web_search"}]),
    request(HI, tools=None, metadata={"user_id": "u"}, stop_sequences=["x"], stream=False),
    request(HI, thinking={"type": "adaptive"}, output_config={"effort": "low"}),
    request(HI, assistant({"type": "thinking", "thinking": "", "signature": "s"}, text("x")), HI),
])
def test_what_the_api_allows_is_allowed(shared, body):
    status, answer = send(shared, body)
    assert status == 200, answer
    assert not shared.errors


def test_an_unknown_path_is_404_and_the_root_tells_what_this_is(server):
    status, answer = send(server, request(HI), path="/v1/v1/messages")
    assert (status, answer["error"]["type"]) == (404, "not_found_error")
    with urllib.request.urlopen(server.url + "/") as page:
        assert "stand-in" in json.load(page)["message"]


# ------------------------------------------------------------------ tokens and cache

BIG = "x" * 8000  # two thousand tokens


def test_tokens_are_a_quarter_of_the_bytes_of_each_block(shared):
    block = '{"type":"text","text":"say é"}'
    usage = ask(shared, user("say é"), tools=None)["usage"]
    assert usage == {
        "input_tokens": len(block.encode()) // 4, "output_tokens": 1, "service_tier": "standard",
        "cache_creation_input_tokens": 0, "cache_read_input_tokens": 0,
        "cache_creation": {"ephemeral_5m_input_tokens": 0, "ephemeral_1h_input_tokens": 0}}


def test_count_tokens_agrees_with_usage_and_needs_no_max_tokens(shared):
    for path in ("/v1/messages/count_tokens", "/v1/messages/count_tokens?beta=true"):
        status, counted = send(shared, request(HI, max_tokens=None), path=path)
        assert counted == {"input_tokens": ask(shared, HI)["usage"]["input_tokens"]}
    assert send(shared, request(max_tokens=None), path=path)[0] == 400
    assert "at least one message" in shared.errors.pop()


def cached(server, *content, owner="key", ttl=None, **more) -> tuple[int, int, int]:
    """(read, written, rest) in tokens of a request with these blocks."""
    headers = {**HEADERS, "x-api-key": owner}
    status, reply = send(server, request(user(*content), **more), headers=headers)
    assert status == 200, reply
    usage = reply["usage"]
    assert sum(usage["cache_creation"].values()) == usage["cache_creation_input_tokens"]
    return (usage["cache_read_input_tokens"], usage["cache_creation_input_tokens"],
            usage["input_tokens"])


def size(*blocks: dict) -> int:
    return sum(offline_rules.estimate(offline.ENCODE(block)) for block in blocks)


FIXED = size(*TOOLS)
ONE, TWO = text("say " + BIG), text("say more")


def test_a_marked_prefix_is_written_once_and_then_read(server):
    marked = {**ONE, "cache_control": MARK}
    assert cached(server, marked, TWO) == (0, FIXED + size(ONE), size(TWO))
    assert cached(server, marked, TWO) == (FIXED + size(ONE), 0, size(TWO))


def test_moving_the_mark_reads_the_earlier_entry_and_writes_the_difference(server):
    cached(server, {**ONE, "cache_control": MARK})
    longer = cached(server, ONE, {**TWO, "cache_control": MARK})
    assert longer == (FIXED + size(ONE), size(TWO), 0)


def test_automatic_caching_marks_the_last_block(server):
    assert cached(server, ONE, TWO, cache_control=MARK) == (0, FIXED + size(ONE, TWO), 0)
    assert cached(server, ONE, TWO, cache_control=MARK) == (FIXED + size(ONE, TWO), 0, 0)


def test_an_entry_more_than_twenty_blocks_back_is_not_found(server):
    cached(server, {**ONE, "cache_control": MARK})
    for more, found in ((19, FIXED + size(ONE)), (20, 0)):
        other = [text(f"say {more} {n}") for n in range(more)]
        other[-1]["cache_control"] = MARK
        assert cached(server, ONE, *other)[0] == found


def test_a_prefix_below_the_minimum_is_not_cached(server):
    small = text("say hi", cache_control=MARK)
    assert cached(server, small)[:2] == cached(server, small)[:2] == (0, 0)


def test_a_changed_tool_or_system_prompt_loses_the_cache(server):
    marked = {**ONE, "cache_control": MARK}
    cached(server, marked, system="be brief")
    assert cached(server, marked, system="be brief")[0] > 0
    assert cached(server, marked, system="be long")[0] == 0
    assert cached(server, marked, system="be brief", tools=TOOLS[1:])[0] == 0


def test_entries_last_five_minutes_or_an_hour_and_reading_refreshes_them():
    now = [1000.0]
    with offline.start(clock=lambda: now[0]) as server:
        for mark, life in ((MARK, 300), (HOUR, 3600)):
            block = {**ONE, "text": f"say {life} {BIG}", "cache_control": mark}
            assert cached(server, block)[0] == 0
            for _ in range(2):
                now[0] += life - 1
                assert cached(server, block)[0] > 0
            now[0] += life + 1
            assert cached(server, block)[0] == 0


def test_creation_is_told_apart_by_lifetime(server):
    hour, five = {**ONE, "cache_control": HOUR}, {**TWO, "cache_control": MARK}
    usage = ask(server, user(hour, five))["usage"]
    assert usage["cache_creation"] == {"ephemeral_1h_input_tokens": FIXED + size(ONE),
                                       "ephemeral_5m_input_tokens": size(TWO)}


def test_keys_and_models_do_not_share_entries(server):
    marked = {**ONE, "cache_control": MARK}
    cached(server, marked)
    assert cached(server, marked, owner="other")[0] == 0
    assert cached(server, marked, model="other")[0] == 0
    assert cached(server, marked)[0] > 0


def test_a_conversation_of_a_thousand_turns_is_answered_quickly(shared):
    messages = [user("bash a ;; " * 1000 + "say End.")]
    for n in range(1000):
        messages += [assistant(use(f"t{n}", command="a")), user(result(f"t{n}", "x" * 200))]
    body = json.dumps(request(*messages)).encode()
    times = []
    for _ in range(3):
        began = time.process_time()
        status, reply = send(shared, body)
        times.append(time.process_time() - began)
        assert played(reply) == ["End."]
    assert min(times) < 0.25  # a few tens of ms; the rest is for a slow machine


# ------------------------------------------------------------------ the SDK, streams and faults

ASK = {"model": "m", "max_tokens": 1000, "tools": TOOLS,
       "messages": [user("say Thinking about this aloud. ;; bash echo a longer command ++ status")]}


def streamed(client, **request):
    with client.messages.stream(**request) as stream:
        return stream.get_final_message()


def test_a_stream_adds_up_to_the_json_reply(server, sdk):
    whole = sdk.messages.create(**ASK)
    assert streamed(sdk, **ASK).to_dict() == whole.to_dict()
    assert [block.type for block in whole.content] == ["text", "tool_use", "tool_use"]
    assert not server.errors


def test_stream_events_come_in_the_order_of_the_api(sdk):
    events = [event for event in sdk.messages.create(**ASK, stream=True)]
    kinds = "".join({"message_start": "M", "content_block_start": "(", "content_block_delta": ".",
                     "content_block_stop": ")", "message_delta": "D", "message_stop": "S"}
                    [event.type] for event in events)
    assert re.fullmatch(r"M(\(\.{2,}\)){2}\(\.+\)DS", kinds)
    deltas = [event.delta for event in events if event.type == "content_block_delta"]
    fragments = [delta.partial_json for delta in deltas if delta.type == "input_json_delta"]
    assert fragments[0] == "" and len(fragments) > 3
    assert events[0].message.usage.input_tokens and events[-2].usage.output_tokens


def test_a_ping_follows_the_start_of_a_stream(shared):
    asked = urllib.request.Request(shared.url + "/v1/messages", json.dumps(
        request(HI, stream=True)).encode(), HEADERS)
    with urllib.request.urlopen(asked) as answer:
        assert answer.headers["content-type"] == "text/event-stream"
        assert answer.headers["request-id"].startswith("req_")
        assert re.findall(r"^event: (\w+)", answer.read().decode(), re.M)[:2] == [
            "message_start", "ping"]


@pytest.mark.parametrize("fault, error, status", [
    ("400", "BadRequestError", 400), ("401", "AuthenticationError", 401),
    ("403", "PermissionDeniedError", 403), ("404", "NotFoundError", 404),
    ("429", "RateLimitError", 429), ("500", "InternalServerError", 500),
    ("502", "InternalServerError", 502), ("529", "OverloadedError", 529)])
def test_a_status_fault_reaches_the_sdk_as_its_exception(server, sdk, fault, error, status):
    import anthropic
    server.inject(fault)
    with pytest.raises(anthropic.APIStatusError) as caught:
        sdk.messages.create(**ASK)
    assert type(caught.value).__name__ == error or isinstance(
        caught.value, anthropic.InternalServerError)
    assert caught.value.status_code == status
    assert sdk.messages.create(**ASK).stop_reason == "tool_use"


def test_the_sdk_retries_overload_and_rate_limit(server, sdk):
    server.inject("529", "429:0.01")
    assert sdk.with_options(max_retries=3).messages.create(**ASK).stop_reason == "tool_use"
    assert [record["status"] for record in server.requests] == [529, 429, 200]


def raw_status(server, body=None) -> tuple[int, dict, bytes]:
    connection = http.client.HTTPConnection("127.0.0.1", server.server_address[1], timeout=5)
    with contextlib.closing(connection):
        connection.request("POST", "/v1/messages", json.dumps(body or request(HI)), HEADERS)
        answer = connection.getresponse()
        return answer.status, {k.lower(): v for k, v in answer.getheaders()}, answer.read()


def test_status_faults_have_the_shape_of_the_api_or_of_a_proxy(server):
    server.inject("529:2", "429:1.5", "429", "400:prompt", "413", "502", "504")
    assert raw_status(server)[1]["retry-after"] == "2"
    status, headers, body = raw_status(server)
    assert (status, headers["retry-after"]) == (429, "1.5")
    assert json.loads(body)["request_id"] == headers["request-id"]
    assert raw_status(server)[1]["retry-after"] == "0"
    assert b"prompt is too long: " in raw_status(server)[2]
    for status in (413, 502):
        got, headers, body = raw_status(server)
        assert (got, headers["content-type"], body[:6]) == (status, "text/html", b"<html>")
    status, headers, body = raw_status(server)
    assert json.loads(body)["error"]["type"] == "timeout_error" and "retry-after" not in headers
    assert not server.errors


def test_reset_drops_the_connection_before_a_byte(server):
    server.inject("reset")
    with pytest.raises(ConnectionResetError):
        raw_status(server)
    assert raw_status(server)[0] == 200


@pytest.mark.parametrize("fault", ["cut", "cut:10", "stall:0.05"])
@pytest.mark.parametrize("stream", [False, True])
def test_a_cut_body_ends_before_what_its_headers_promised(server, fault, stream):
    whole = raw_status(server, request(HI, stream=stream))[2]
    server.inject(fault)
    with pytest.raises(http.client.IncompleteRead) as caught:
        raw_status(server, request(HI, stream=stream))
    if not stream:
        assert caught.value.partial == whole[:10 if fault == "cut:10" else len(whole) // 2]


def test_a_cut_stream_reaches_the_sdk_as_a_broken_connection(server, sdk):
    import httpx2
    server.inject("cut:300")
    with pytest.raises(httpx2.TransportError):
        streamed(sdk, **ASK)


def test_slow_delays_the_first_byte(server):
    server.inject("slow:0.1")
    began = time.perf_counter()
    assert raw_status(server)[0] == 200
    assert time.perf_counter() - began >= 0.1


def test_stream_error_is_an_event_after_some_deltas_and_529_without_a_stream(server, sdk):
    import anthropic
    server.inject("stream-error", "stream-error")
    seen = []
    with pytest.raises(anthropic.APIStatusError) as caught:
        with sdk.messages.stream(**ASK) as stream:
            seen.extend(event.type for event in stream)
    assert "content_block_delta" in seen and caught.value.type == "overloaded_error"
    with pytest.raises(anthropic.APIStatusError) as caught:
        sdk.messages.create(**ASK)
    assert caught.value.status_code == 529


def test_bad_json_breaks_the_tool_input_in_both_forms(server, sdk):
    server.inject("bad-json", "bad-json")
    with pytest.raises(ValueError):
        streamed(sdk, **ASK)
    broken = sdk.messages.create(**ASK).content[1].input
    with pytest.raises(ValueError):
        json.loads(broken)


def test_max_tokens_cuts_a_call_to_an_empty_input_and_a_text_in_mid_word(server, sdk):
    server.inject("max_tokens*3")
    one = {**ASK, "messages": [user("bash echo hello")]}
    for reply in (sdk.messages.create(**one), streamed(sdk, **one)):
        assert (reply.stop_reason, reply.content[0].input) == ("max_tokens", {})
    words = {**ASK, "messages": [user("say All done.")]}
    assert sdk.messages.create(**words).content[0].text == "All d"


def test_refusal_empty_blank_and_pause_have_their_shapes(server, sdk):
    server.inject("refusal", "empty", "blank", "blank")
    refused = streamed(sdk, **ASK)
    assert (refused.stop_reason, refused.stop_details.type) == ("refusal", "refusal")
    empty = streamed(sdk, **ASK)
    assert (empty.content, empty.stop_reason) == ([], "end_turn")
    blank = streamed(sdk, **ASK)
    assert [b.type for b in blank.content] == ["text", "tool_use", "tool_use"]
    assert blank.content[0].text == "\n" and blank.stop_reason == "tool_use"
    words = sdk.messages.create(**{**ASK, "messages": [HI]})
    assert (words.content[0].text, words.stop_reason) == ("", "end_turn")


def test_a_paused_turn_is_sent_back_as_it_is_and_goes_on(server):
    server.inject("pause")
    paused = ask(server, user("bash a"))
    assert paused["stop_reason"] == "pause_turn"
    more = ask(server, user("bash a"), assistant(*paused["content"]))
    assert played(more) == [("bash", {"command": "a"})]
    done = ask(server, user("bash a"), assistant(*paused["content"]),
               assistant(*more["content"]), user(*answers(more)))
    assert done["stop_reason"] == "end_turn" and not server.errors


def test_faults_are_spelled_with_commas_spaces_and_repetitions():
    assert offline.parse_faults("529*2, ok slow:0.5,,cut:9*2") == [
        "529", "529", "ok", "slow:0.5", "cut:9", "cut:9"]
    assert offline.parse_faults(["429:1.5", "reset"]) == ["429:1.5", "reset"]


@pytest.mark.parametrize("spec", ["nope", "slow", "slow:x", "413:1", "529*x", "cut:-1", "200"])
def test_an_unknown_fault_is_refused_and_the_known_ones_are_named(spec):
    with pytest.raises(ValueError, match=r"unknown fault .*known: ok 429 .*stream-error"):
        offline.parse_faults(spec)


def test_faults_wait_for_message_requests_and_ok_lets_one_pass(server):
    server.inject("ok", "500")
    assert send(server, request(HI), path="/v1/messages/count_tokens")[0] == 200
    assert server.faults == ["ok", "500"]
    assert [send(server, request(HI))[0] for _ in range(3)] == [200, 500, 200]


def test_faults_and_log_come_from_the_environment_when_none_are_given(monkeypatch, tmp_path):
    monkeypatch.setenv("OFFLINE_FAULTS", "500")
    monkeypatch.setenv("OFFLINE_LOG", str(tmp_path / "log"))
    with offline.start() as server, offline.start(faults="ok") as other:
        assert (server.faults, other.faults) == (["500"], ["ok"])
        send(server, request(HI)), send(server, request(HI))
        first, second = map(json.loads, (tmp_path / "log").read_text().splitlines())
    assert (first["status"], first["error"]) == (500, "Internal server error")
    assert (second["stop_reason"], second["path"]) == ("end_turn", "/v1/messages")
    assert second["usage"]["output_tokens"] == 1


# ------------------------------------------------------------------ the server

def test_requests_are_recorded_without_secrets_and_bodies_only_on_demand():
    for wanted in (False, True):
        with offline.start(record=wanted) as server:
            ask(server, HI)
            [record] = server.requests
            assert record["headers"]["x-api-key"] == "(redacted)"
            assert (record["body"] is not None) == wanted
            assert record["reply"]["usage"] == record["usage"] and record["status"] == 200


def test_no_more_than_a_thousand_requests_are_kept(server):
    for number in range(offline.KEPT + 5):
        server.keep({"status": number})
    assert len(server.requests) == offline.KEPT and server.requests[-1]["status"] == 1004


def test_a_connection_is_kept_for_the_next_request(server):
    connection = http.client.HTTPConnection("127.0.0.1", server.server_address[1], timeout=5)
    for _ in range(2):
        connection.request("POST", "/v1/messages?beta=true", json.dumps(request(HI)), HEADERS)
        connection.getresponse().read()
    assert len(server.connections) == 1
    connection.close()


def test_a_client_that_goes_away_leaves_no_traceback(server, capfd):
    for data in (b"POST /v1/messages HTTP/1.1\r\ncontent-length: 99\r\n\r\n{", b"GE"):
        with socket.create_connection(server.server_address[:2]) as client:
            client.sendall(data)
    time.sleep(0.05)
    assert capfd.readouterr() == ("", "")


def test_stop_closes_open_connections_and_may_be_called_twice():
    server = offline.start()
    client = socket.create_connection(server.server_address[:2], timeout=5)
    client.sendall(b"GET / HTTP/1.1\r\n\r\n")
    assert client.recv(99)
    server.stop(), server.stop()
    while client.recv(4096):
        pass
    client.close()
    with pytest.raises(OSError):
        socket.create_connection(server.server_address[:2], timeout=1)


# ------------------------------------------------------------------ the command line

def launch(*arguments: str) -> subprocess.Popen:
    environment = {key: value for key, value in os.environ.items() if key[:7] != "OFFLINE"}
    return subprocess.Popen([sys.executable, str(REPOSITORY / "offline.py"), *arguments],
                            stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True,
                            env=environment)


def test_the_command_line_serves_until_ctrl_c(tmp_path):
    process = launch("--port", "0", "--fault", "500", "--log", str(tmp_path / "log"))
    line = process.stdout.readline()
    process.url = re.search(r"ANTHROPIC_BASE_URL=(\S+)", line)[1]
    assert [send(process, request(HI))[0] for _ in range(2)] == [500, 200]
    process.send_signal(signal.SIGINT)
    out, errors = process.communicate(timeout=3)
    assert (process.returncode, out, errors) == (0, "", "")
    assert len((tmp_path / "log").read_text().splitlines()) == 2


def test_a_port_in_use_and_a_bad_fault_are_told_in_one_line(server):
    taken = launch("--port", str(server.server_address[1]))
    wrong = launch("--port", "0", "--fault", "nope")
    _, errors = taken.communicate(timeout=5)
    assert taken.returncode == 1 and errors.count("\n") == 1 and "in use" in errors
    _, errors = wrong.communicate(timeout=5)
    assert wrong.returncode == 2 and "unknown fault 'nope'; known: ok" in errors


def test_help_shows_the_language_and_the_faults_within_80_columns():
    shown, _ = launch("--help").communicate(timeout=5)
    assert max(map(len, shown.splitlines())) <= 80
    assert "two calls in the same reply" in shown and "stream-error" in shown


@pytest.mark.parametrize("line, given", [
    (r"""bash awk -F'"' '{print $2}' f""", r"""awk -F'"' '{print $2}' f"""),
    (r'grep "\d+"', r"\d+"), (r"""bash "grep '\.py$' x\"""" + '"', None)])
def test_quotes_of_shells_and_patterns_are_kept_or_taken_off_as_meant(line, given):
    step = offline_script.read_step(line, SCHEMAS)
    assert given is None or given in step.calls[0][1].values()


def test_two_commands_with_odd_quotes_are_two_steps():
    assert len(offline_script.sources("""bash awk -F'"' '{print $2}' f ;; bash grep -c "x" f""")) == 2


def test_going_on_keeps_the_steps_that_are_left_through_a_summary():
    """Playing must survive compaction, whichever words asked it to go on."""
    use = {"type": "tool_use", "id": "toolu_1", "name": "bash", "input": {"command": "one"}}
    talk = [{"role": "user", "content": "bash one ;; bash two ;; say End."}, {"role": "assistant", "content": [use]},
            {"role": "user", "content": [{"type": "tool_result", "tool_use_id": "toolu_1", "content": "1"}]},
            {"role": "user", "content": "go on"}]
    assert [step.source for step in offline_script.walk(talk, None).steps] == ["bash two", "say End."]


def test_steps_remembered_of_an_earlier_run_are_not_played_for_other_words():
    """B051"""
    talk = [{"role": "user", "content": "Earlier:\n<steps>\nbash rm old\n</steps>"},
            {"role": "assistant", "content": "I have read this."}, {"role": "user", "content": "hello there"}]
    assert offline_script.walk(talk, SCHEMAS).steps == []
    talk[-1]["content"] = "go on"
    assert [step.source for step in offline_script.walk(talk, SCHEMAS).steps] == ["bash rm old"]


def test_a_changed_tool_choice_leaves_tools_cached_and_no_message():
    """A7"""
    body = {"tools": [{"name": "bash", "input_schema": {"type": "object"}}], "system": "s", "messages": []}
    joined = [(0, "user", [{"type": "text", "text": "hi"}])]
    plain, forced = (offline_rules.measure({**body, **more}, joined) for more in ({}, {"tool_choice": {"type": "any"}}))
    assert [a.digest == b.digest for a, b in zip(plain, forced)] == [True, True, False]


def test_a_client_that_leaves_in_the_middle_of_its_request_broke_no_rule(server):
    with socket.create_connection(("127.0.0.1", int(server.url.rpartition(":")[2]))) as connection:
        connection.sendall(b"POST /v1/messages HTTP/1.1\r\nhost: x\r\ncontent-length: 500\r\n\r\n{")
    with contextlib.closing(http.client.HTTPConnection("127.0.0.1", int(server.url.rpartition(":")[2]))) as connection:
        connection.request("GET", "/")
        assert connection.getresponse().status == 200 and server.errors == []
