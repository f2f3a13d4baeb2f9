"""core: events, settings, the client and its retries, reply shapes, validation, dispatch, permissions."""

import contextlib
import itertools
import json
import os
import re
import subprocess
import sys
import threading
from pathlib import Path
from types import SimpleNamespace
from typing import Literal

import pytest

import core
import offline
from talk import interrupted_at

ROOT = Path(core.__file__).parent
POSIX = pytest.mark.skipif(os.name != "posix", reason="needs POSIX processes")


def nothing(**given) -> str:
    return "done"


def make_tool(run=nothing, name: str = "probe", read_only: bool = False, **fields) -> core.Tool:
    """A tool whose fields have the given schemas, all required."""
    schema = {"type": "object", "properties": fields, "required": list(fields), "additionalProperties": False}
    return core.Tool(name, "", schema, run, read_only)


BASH = make_tool(name="bash", command={"type": "string"})
BASH.input_schema["properties"]["timeout"] = {"type": "number"}
WRITE = make_tool(name="write", path={"type": "string"}, content={"type": "string"})
READ = make_tool(name="read", read_only=True, path={"type": "string"})


def call_of(name: str, **given) -> dict:
    return {"type": "tool_use", "id": "toolu_0123456789abcdef", "name": name, "input": given}


def behavior(permissions: core.Permissions, command: str) -> str:
    return permissions.decide(BASH, {"command": command}).behavior


# ------------------------------------------------------------------------------- import


def test_importing_core_has_no_effect_and_takes_no_sdk():
    code = ("import os, sys, threading; before = set(os.listdir('.')); import core; "
            "late = {'anthropic', 'rich', 'dotenv', 'httpx2', 'offline', 'console'}; "
            "assert not late & sys.modules.keys(); "
            "assert threading.active_count() == 1; assert set(os.listdir('.')) == before; "
            "assert core._clients == {} and core.listeners == []")
    environment = {name: os.environ[name] for name in ("PATH", "SYSTEMROOT") if name in os.environ}
    command = [sys.executable, "-B", "-c", code]
    done = subprocess.run(command, cwd=ROOT, env=environment, capture_output=True, timeout=60)
    assert (done.returncode, done.stdout, done.stderr) == (0, b"", b"")


# ------------------------------------------------------------------------------- events


def test_an_event_has_its_kind_its_time_and_its_data(events):
    core.emit("notice", text="hello")
    assert events[0]["kind"] == "notice" and events[0]["text"] == "hello" and events[0]["time"] > 1e9


def test_a_listener_that_fails_breaks_nothing_and_is_logged(events, caplog):
    core.listeners.insert(0, lambda event: 1 / 0)
    core.emit("notice", text="hello")
    assert events and "ZeroDivisionError" in caplog.text


def test_a_listener_may_remove_itself_while_it_is_told(events):
    core.listeners.insert(0, lambda event: core.listeners.pop(0))
    core.emit("notice", text="hello")
    assert len(events) == 1


# ------------------------------------------------------------------------------- settings


def test_without_key_and_endpoint_the_model_is_the_stand_in():
    assert core.settings().offline and core.settings().model == core.STAND_IN_MODEL


@pytest.mark.parametrize("variables, expected", [
    ({"ANTHROPIC_API_KEY": " k "}, core.Settings("k")),
    ({"ANTHROPIC_AUTH_TOKEN": "t"}, core.Settings("", "t")),
    ({"ANTHROPIC_BASE_URL": "http://h:1/v1/"}, core.Settings("", "", "http://h:1")),
    ({"ANTHROPIC_API_KEY": "k", "API_TIMEOUT_MS": "9"}, core.Settings("k", timeout_ms="9")),
    ({"ANTHROPIC_API_KEY": "k", "CONTEXT_WINDOW": "32768"}, core.Settings("k", context_window="32768")),
    ({"ANTHROPIC_API_KEY": "k", "ANTHROPIC_MODEL": "a"}, core.Settings("k", model="a")),
    ({"ANTHROPIC_API_KEY": "k", "ANTHROPIC_MODEL": "a", "MODEL_ID": "b"}, core.Settings("k", model="b")),
], ids=str)
def test_settings_come_from_the_environment(variables, expected, monkeypatch):
    for name, value in variables.items():
        monkeypatch.setenv(name, value)
    assert core.settings() == expected and not expected.offline


def test_only_the_api_itself_is_asked_for_prompt_caching():
    assert core.Settings("k").caching and core.Settings("k", "", "https://api.anthropic.com").caching
    assert not core.Settings("", "", "http://localhost:11434").caching


def test_a_dated_model_id_has_the_price_of_its_model():
    assert core.model_info("claude-sonnet-5-5-20261001") == core.MODELS["claude-sonnet-5-5"]


def test_an_unknown_model_has_a_window_and_no_price():
    assert core.model_info("local").window == 200_000 and core.cost("local", {"input_tokens": 5}) is None


def test_cost_counts_cache_reads_a_tenth_and_writes_more():
    usage = {"input_tokens": 1_000_000, "output_tokens": 100_000, "cache_read_input_tokens": 1_000_000,
             "cache_creation_input_tokens": 2_000_000,
             "cache_creation": {"ephemeral_1h_input_tokens": 1_000_000}}
    assert core.cost("claude-sonnet-5-5", usage) == pytest.approx(2 * (1 + 0.1 + 1.25 + 2) + 1)


def test_usage_with_missing_or_null_figures_is_counted():
    assert core.prompt_tokens({"input_tokens": 5, "cache_read_input_tokens": None}) == 5
    assert core.cost("claude-sonnet-5-5", {"cache_creation": None}) == 0


# ------------------------------------------------------------------------------- client


def test_twenty_threads_get_one_client_and_one_stand_in():
    found, start = [], threading.Barrier(20)

    def work():
        start.wait()
        found.append(core.client())

    core._clients.clear()
    before = sum(thread.name.startswith("Thread") for thread in threading.enumerate())
    threads = [threading.Thread(target=work) for _ in range(20)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert len(found) == 20 and len({id(client) for client in found}) == 1
    assert sum(thread.name.startswith("Thread") for thread in threading.enumerate()) - before <= 1


def test_a_base_url_without_a_key_works(stand_in):
    assert core.text_of(ask("say Hi.")["content"]) == "Hi."


@pytest.mark.parametrize("file", ["_base_client.py", "httpx2/_client.py"])
def test_ctrl_c_while_the_client_is_made_leaves_nothing_that_complains(file, stand_in, monkeypatch):
    """The SDK's own HTTP client would: half made, it shows a traceback when it is let go."""
    complaints = []
    monkeypatch.setattr(sys, "unraisablehook", complaints.append)
    for line in itertools.count(1, 5):
        core._clients.clear()
        with interrupted_at(line, file) as whole:
            core.client()
            whole.append(True)
        if whole:
            break
    assert line > 5 and complaints == []


@pytest.mark.parametrize("name, value", [("HTTP_PROXY", "http://127.0.0.1:9"), ("ALL_PROXY", "socks5://127.0.0.1:9"),
                                         ("SSL_CERT_FILE", "/no/such/file")])
def test_what_leads_out_of_this_machine_does_not_stand_before_a_server_on_it(name, value, stand_in, monkeypatch):
    monkeypatch.setenv(name, value)
    core._clients.clear()
    assert core.text_of(ask("say Hi.")["content"]) == "Hi."


@pytest.mark.parametrize("name, value", [("ALL_PROXY", "gopher://127.0.0.1:9"), ("SSL_CERT_FILE", "/no/such/file")])
def test_a_network_setting_that_cannot_be_used_is_one_line_at_once(name, value, monkeypatch, events):
    monkeypatch.setenv("ANTHROPIC_BASE_URL", "https://h.invalid")
    monkeypatch.setenv(name, value)
    core._clients.clear()
    with pytest.raises(core.ModelError, match=f"network's settings cannot be used.*{name}"):
        ask()
    assert not events


def test_the_client_follows_changed_settings(monkeypatch):
    monkeypatch.setenv("ANTHROPIC_BASE_URL", "http://127.0.0.1:1")
    first = core.client()
    monkeypatch.setenv("ANTHROPIC_BASE_URL", "http://127.0.0.1:2")
    assert core.client() is not first and core.client() is core.client()


# ------------------------------------------------------------------------------- calls and retries


def ask(prompt: str = "say Hello.") -> dict:
    return core.call_model(lambda: core.client().messages.create(
        model="stand-in", max_tokens=500, messages=[{"role": "user", "content": prompt}]))


@pytest.fixture
def faulty(monkeypatch):
    """Starts a stand-in with the faults given."""
    with contextlib.ExitStack() as servers:
        yield lambda faults: monkeypatch.setenv(
            "ANTHROPIC_BASE_URL", servers.enter_context(offline.start(faults=faults)).url)


@pytest.mark.parametrize("fault, words", [
    ("402", "billing"), ("403", "key")])
def test_what_retrying_cannot_help_fails_at_once_and_says_what_to_do(fault, words, faulty, events):
    faulty(fault)
    with pytest.raises(core.ModelError) as failure:
        ask()
    text = str(failure.value)
    assert words in text and "\n" not in text and "<html" not in text.lower() and not events


@pytest.mark.parametrize("name, value", [
    ("ANTHROPIC_API_KEY", "sk-one\nsk-two"), ("ANTHROPIC_AUTH_TOKEN", "sk-\udcff"), ("API_TIMEOUT_MS", "ten"), ("API_TIMEOUT_MS", "0"),
    ("CONTEXT_WINDOW", "32k"), ("CONTEXT_WINDOW", "1")])
def test_a_setting_that_cannot_be_used_is_one_line_at_once(name, value, faulty, monkeypatch, events):
    faulty("ok")
    monkeypatch.setenv(name, value)
    with pytest.raises(core.ModelError) as failure:
        ask()
    assert "\n" not in str(failure.value) and not events
    assert name in str(failure.value) and "sk-" not in str(failure.value)


def test_an_error_of_the_program_itself_is_not_hidden():
    with pytest.raises(ZeroDivisionError):
        core.call_model(lambda: 1 / 0)


# ------------------------------------------------------------------------------- reply shapes


def shaped(**fields) -> dict:
    """plain_reply of what the SDK makes of a body."""
    from anthropic.types import Message

    return core.plain_reply(Message.construct(**{"content": [], "stop_reason": "end_turn", **fields}))


def test_thinking_keeps_its_text_and_signature_byte_for_byte():
    """B052"""
    block = {"type": "thinking", "thinking": " a\n\u00e9 ", "signature": "EqQBCg+/=="}
    assert shaped(content=[block])["content"] == [block]


@pytest.mark.parametrize("text", ["", " ", "\n\t\n", None])
def test_blank_text_is_not_stored(text):
    """B004"""
    hello = {"type": "text", "text": "Hello."}
    assert shaped(content=[{"type": "text", "text": text}, hello])["content"] == [hello]


def test_fields_that_are_null_are_dropped_and_nulls_inside_input_stay():
    block = {"type": "tool_use", "id": "toolu_0123456789abcdef", "name": "x", "input": {"a": None}, "caller": None}
    assert shaped(content=[block])["content"] == [
        {"type": "tool_use", "id": "toolu_0123456789abcdef", "name": "x", "input": {"a": None}}]


def test_an_unknown_block_is_kept_as_it_came():
    block = {"type": "container_upload_v9", "file_id": "f", "extra": [1, {"b": "c"}]}
    assert shaped(content=[block])["content"] == [block]


@pytest.mark.parametrize("given, expected", [
    ('{"command": "ls"}', {"command": "ls"}), ("", {}), (None, {}), ({"a": 1}, {"a": 1}),
    ('{"command": "l', {"invalid_json": '{"command": "l'}), ("[1]", {"invalid_json": "[1]"}),
    ([1], {"invalid_json": "[1]"})])
def test_tool_input_is_a_dict_whatever_a_back_end_sends(given, expected):
    block = {"type": "tool_use", "id": "toolu_0123456789abcdef", "name": "bash", "input": given}
    assert shaped(content=[block])["content"][0]["input"] == expected


@pytest.mark.parametrize("given", [None, "", "call_0", "functions.bash:0", "toolu_a:b"])
def test_an_id_that_is_not_the_apis_is_replaced_by_a_unique_one(given):
    blocks = [{"type": "tool_use", "id": given, "name": "bash", "input": {}}] * 2
    one, two = (block["id"] for block in shaped(content=blocks)["content"])
    assert one != two and all(re.fullmatch(r"toolu_[A-Za-z0-9_-]+", text) for text in (one, two))


@pytest.mark.parametrize("fields, expected", [
    ({"usage": None}, {"content": [], "stop_reason": "end_turn", "usage": {}}),
    ({"stop_reason": ""}, {"content": [], "stop_reason": "", "usage": {}}),
    ({"stop_reason": None}, {"content": [], "stop_reason": None, "usage": {}}),
    ({"content": None}, {"content": [], "stop_reason": "end_turn", "usage": {}}),
    ({"content": "Hi"},
     {"content": [{"type": "text", "text": "Hi"}], "stop_reason": "end_turn", "usage": {}}),
    ({"content": ["Hi", {"text": "no type"}]}, {"content": [], "stop_reason": "end_turn", "usage": {}}),
], ids=str)
def test_odd_replies_of_other_back_ends_are_read(fields, expected):
    assert shaped(**fields) == expected


@pytest.mark.parametrize("answer", ["<html>", None, SimpleNamespace(choices=[])])
def test_what_is_no_message_is_a_model_error_at_once(answer, events):
    with pytest.raises(core.ModelError, match="not a message"):
        core.call_model(lambda: answer)
    assert not events


@pytest.mark.parametrize("fields, wrong", [
    ({"content": 5}, "content must be array"), ({"usage": [1]}, "usage must be object"),
    ({"stop_reason": ["end_turn"]}, "stop_reason must be string"),
    ({"content": [{"type": "text", "text": 5}]}, "content[0].text must be string"),
    ({"content": [{"type": ["text"]}]}, "content[0].type must be string")], ids=str)
def test_a_message_that_is_shaped_wrong_is_a_model_error_which_says_where(fields, wrong, events):
    with pytest.raises(core.ModelError, match=re.escape(f"not a message of the Messages API: {wrong}")):
        core.call_model(lambda: SimpleNamespace(to_dict=lambda **_: {"content": []} | fields))
    assert not events


def test_neighbours_of_equal_role_are_merged_and_the_original_is_untouched():
    messages = [{"role": "user", "content": "a"}, {"role": "assistant", "content": "c"}]
    messages.insert(1, {"role": "user", "content": [{"type": "text", "text": "b"}]})
    before = json.dumps(messages)
    merged = core.merge_roles(messages)
    assert [message["role"] for message in merged] == ["user", "assistant"] and json.dumps(messages) == before
    assert core.text_of(merged[0]["content"]) == "a\n\nb"


# ------------------------------------------------------------------------------- tools and validation


def test_a_function_becomes_a_tool_described_by_its_docstring_and_annotations():
    def note(text: str, tags: list[str], level: Literal["low", "high"] = "low", line: int | None = None,
             share: float = 0.5, extra: dict | None = None, loud: bool = False) -> str:
        """Take a note."""

    tool = core.Tool.of(note, read_only=True)
    assert (tool.name, tool.description, tool.read_only) == ("note", "Take a note.", True)
    assert tool.input_schema == {
        "type": "object", "required": ["text", "tags"], "additionalProperties": False, "properties": {
            "text": {"type": "string"}, "tags": {"type": "array", "items": {"type": "string"}},
            "level": {"type": "string", "enum": ["low", "high"]}, "line": {"type": "integer"},
            "share": {"type": "number"}, "extra": {"type": "object"}, "loud": {"type": "boolean"}}}


def test_annotations_written_as_strings_are_understood():
    def note(text: "str", line: "int | None" = None) -> "str":
        """Take a note."""

    properties = core.Tool.of(note).input_schema["properties"]
    assert properties == {"text": {"type": "string"}, "line": {"type": "integer"}}


def test_the_base_tools_are_seven_and_three_of_them_only_read(workspace):
    tools = core.extended_tools(workspace)
    assert list(tools) == ["bash", "read", "write", "edit", "grep", "glob", "revert"]
    assert [name for name, tool in tools.items() if tool.read_only] == ["read", "grep", "glob"]
    assert list(core.basic_tools(workspace)) == ["bash"]


STEPS = {"type": "array", "items": {
    "type": "object", "properties": {"text": {"type": "string"}, "state": {"enum": ["open", "done"]}},
    "required": ["text"], "additionalProperties": False}}


@pytest.mark.parametrize("value, schema, expected", [
    ("a", {"type": "string"}, []), (None, {"type": ["string", "null"]}, []), (1, {}, []), (1, True, []),
    (1, {"type": "string"}, ["input must be string, not 1"]),
    (True, {"type": "integer"}, ["input must be integer, not true"]),
    (True, {"type": "number"}, ["input must be number, not true"]), (1, {"type": "number"}, []),
    (1.5, {"type": "integer"}, ["input must be integer, not 1.5"]),
    ("x", {"enum": ["a", "b"]}, ["input must be one of a, b, not x"]),
    ([], {"type": "object"}, ["input must be object, not []"]),
    ([{"text": "a", "state": "open"}], STEPS, []),
    ([{"text": 1}, {"state": "gone", "x": 0}], STEPS, [
        "input[0].text must be string, not 1", "input[1].state must be one of open, done, not gone",
        "input[1].text is missing", "input[1].x is unknown"]),
], ids=str)
def test_a_value_is_checked_against_its_schema(value, schema, expected):
    assert core.problems(value, schema) == expected


def test_every_problem_of_an_input_is_named_at_once_with_the_tools_fields(workspace):
    edit = core.extended_tools(workspace)["edit"]
    with pytest.raises(core.ToolError) as failure:
        core.check_input(edit, {"path": 1, "old": "a", "new_text": "b"})
    text = str(failure.value)
    for words in ("path must be string", "old is unknown", "old_text is missing", "new_text: string"):
        assert words in text


def test_broken_json_is_said_to_be_broken():
    with pytest.raises(core.ToolError, match="not valid JSON"):
        core.check_input(BASH, {"invalid_json": '{"command": "l'})


# ------------------------------------------------------------------------------- dispatch


YES = core.Permissions("yes")


def test_a_result_answers_its_call():
    assert core.dispatch(call_of("probe"), core.registry(make_tool()), YES) == {
        "type": "tool_result", "tool_use_id": "toolu_0123456789abcdef", "content": "done"}


def test_an_unknown_tool_is_answered_with_the_tools_there_are():
    result = core.dispatch(call_of("launch"), core.registry(READ, BASH), YES)
    assert result["is_error"] and "'launch'" in result["content"] and "read, bash" in result["content"]


@pytest.mark.parametrize("error", [ValueError("bad\nthing"), KeyError("x"), RecursionError(), OSError(2)])
def test_whatever_a_tool_raises_is_a_result(error):
    def fail(**given):
        raise error

    result = core.dispatch(call_of("probe"), core.registry(make_tool(fail)), YES)
    assert result["is_error"] and f"probe failed: {type(error).__name__}" in result["content"]


def test_a_file_that_the_system_refuses_is_named_with_its_reason(tmp_path):
    def fail(**given):
        (tmp_path / "none" / "x").write_text("")

    result = core.dispatch(call_of("probe"), core.registry(make_tool(fail)), YES)
    assert result["content"] == f"probe failed: {tmp_path / 'none' / 'x'}: No such file or directory"


def test_ctrl_c_inside_a_tool_is_told_apart_from_one_before_it():
    """B131"""
    def strike(*anything, **given):
        raise KeyboardInterrupt

    with pytest.raises(core.Interrupted):
        core.dispatch(call_of("probe"), core.registry(make_tool(strike)), YES)
    with pytest.raises(KeyboardInterrupt) as stop:
        core.dispatch(call_of("probe"), core.registry(make_tool()), core.Permissions(asker=strike))
    assert not isinstance(stop.value, core.Interrupted)


@pytest.mark.parametrize("returned, content", [
    ("", "(no output)"), (" \n", "(no output)"), (None, "(no output)"), ([], "(no output)"), (3, "3"),
    ("a\ud800b", "a?b"), ([{"type": "text", "text": "x"}], [{"type": "text", "text": "x"}])], ids=repr)
def test_a_result_can_always_be_sent(returned, content):
    result = core.dispatch(call_of("probe"), core.registry(make_tool(lambda: returned)), YES)
    assert result["content"] == content
    json.dumps(result).encode("utf-8")


def test_a_long_result_keeps_head_and_tail_and_counts_the_middle():
    """B028"""
    text = core.clip("a" * 50_000 + "z" * 50_000)
    assert len(text) <= 30_000 and text[0] == "a" and text[-1] == "z"
    assert "[... 70,060 characters left out ...]" in text


@pytest.mark.parametrize("limit", [0, 1, 61, 70, 100])
def test_clipping_to_very_little_still_cuts(limit):
    assert len(core.clip("x" * 1_000, limit)) <= max(limit, 60)


def test_text_blocks_of_a_result_are_clipped_like_text():
    """B143: a tool that returns blocks must not get around the limit."""
    blocks = [{"type": "text", "text": "a" * 500_000}, {"type": "text", "text": "b"}]
    long, short = core.dispatch(call_of("probe"), core.registry(make_tool(lambda: blocks)), YES)["content"]
    assert len(long["text"]) <= 30_000 and "characters left out" in long["text"] and short == blocks[1]


@pytest.mark.parametrize("returned", [[{"text": "no type"}], [None], {1}, b"bytes" * 9, [{"type": "text"}]], ids=repr)
def test_content_of_no_known_kind_does_not_end_the_turn(returned):
    """B143"""
    result = core.dispatch(call_of("probe"), core.registry(make_tool(lambda: returned)), YES)
    json.dumps(result)
    assert result["content"]


def test_a_question_that_breaks_runs_nothing():
    """B114: what cannot be decided is not allowed."""
    ran = []

    def broken(*question):
        raise OSError("the terminal is gone")

    tools = core.registry(make_tool(lambda: ran.append(1)))
    result = core.dispatch(call_of("probe"), tools, core.Permissions(asker=broken))
    assert result["is_error"] and "the terminal is gone" in result["content"] and not ran


def test_a_denial_is_a_result_the_model_reads(events):
    ran = []
    tools = core.registry(make_tool(lambda: ran.append(1)))
    result = core.dispatch(call_of("probe"), tools, core.Permissions())
    assert result["is_error"] and "permission denied" in result["content"] and not ran
    assert "--yes" in result["content"]
    assert [(event["kind"], event["behavior"]) for event in events] == [("decision", "deny")]


# ------------------------------------------------------------------------------- permissions


def test_reading_is_allowed_and_everything_else_is_asked():
    permissions = core.Permissions()
    assert permissions.decide(READ, {"path": "a"}).behavior == "allow"
    assert permissions.decide(WRITE, {"path": "a", "content": ""}).behavior == "ask"
    assert behavior(permissions, "ls") == "ask"


def test_deny_wins_over_ask_and_ask_over_allow():
    both = core.Permissions(allow=["bash(git *)"], ask=["bash(git push *)"], deny=["bash(git push --force*)"])
    assert [behavior(both, command) for command in ("git log", "git push", "git push --force x")] == [
        "allow", "ask", "deny"]


def test_deny_wins_over_yes():
    assert behavior(core.Permissions("yes", deny=["bash(curl *)"]), "curl x") == "deny"


@pytest.mark.parametrize("command", [
    "rm -rf /", "rm -rf /*", "rm -fr ~", "rm -r -f ~/", "rm --recursive --force /", "sudo rm -rf /",
    "rm -rf / tmp", "rm -rf -- /", "rm -rf //", "rm -rf /.", "rm -rf $HOME", 'rm -rf "$HOME"/*',
    "rm -rf ${X}/", "env rm -rf /", "sh -c 'rm -rf \"$UNSET/\"'", "bash -c \"rm -rf '/'\"",
    "echo / | xargs rm -rf /", "ls && rm -Rf /; ls", "cd x\nrm -rf /\n", "rm -rf \\\n /", "/bin/rm -rf /",
    "(rm -rf /)", "chmod -R 777 /", "chown -R me ~", "mkfs.ext4 /dev/sda1", "sudo mkfs -t ext4 /dev/sdb",
    "dd if=/dev/zero of=/dev/sda", "cat x > /dev/sda", ":(){ :|:& };:", "shutdown -h now", "sudo reboot",
    "true && poweroff", "sh -c 'reboot'"])
def test_the_worst_commands_are_denied_whatever_was_answered(command):
    """B104"""
    for permissions in (core.Permissions("yes"), core.Permissions(allow=["bash"])):
        assert behavior(permissions, command) == "deny"


@pytest.mark.parametrize("command", [
    "rm -rf build", "rm -rf ./build/", "rm -rf /tmp/x", "rm -rf ~/project/build", "rm x && ls -R /",
    "rm a\nls -r /", "git rm -r docs", "rm -rf $BUILD", "grep -rn reboot .", "./reboot.sh", "man mkfs",
    "chmod -R u+w src", "dd if=a of=b", "echo x > /dev/null", "find / -name x", "npm run shutdown"])
def test_harmless_neighbours_of_the_worst_commands_are_not_denied(command):
    assert behavior(core.Permissions("yes"), command) == "allow"


def test_the_order_of_the_models_fields_does_not_hide_the_command():
    given = {"timeout": 5, "command": "rm -rf /"}
    assert core.Permissions("yes").decide(BASH, given).behavior == "deny"
    denied = core.Permissions("yes", deny=["write(secret*)"])
    assert denied.decide(WRITE, {"content": "x", "path": "secret.txt"}).behavior == "deny"


def test_a_tool_of_another_name_with_a_command_is_judged_as_a_shell():
    background = make_tool(name="background", command={"type": "string"})
    assert core.Permissions("yes").decide(background, {"command": "rm -rf /"}).behavior == "deny"


@pytest.mark.parametrize("command", [
    "sh -c 'rm -rf x'", 'bash -c "rm x"', "echo x | xargs rm -rf", "xargs -n 1 rm", "env rm -rf /x",
    "env A=1 rm x", "A=1 rm x", "nohup rm x &", "timeout 5 rm x", "nice -n 10 rm x", "sudo -u bob rm x",
    "exec rm x", "/bin/rm x", "\\rm x", "r\\m x", "RM x", "if true; then rm x; fi",
    "for f in *; do rm $f; done", "! rm x", "(rm x)", "{ rm x; }", "find . -exec rm {} +", "eval 'rm x'",
    "eval rm x", "time rm x", "watch rm x", "command rm x", "rm", "'rm' x"])
def test_a_deny_rule_looks_behind_wrappers(command):
    """B104, B109, B111"""
    assert behavior(core.Permissions("yes", deny=["bash(rm *)"]), command) == "deny"


@pytest.mark.parametrize("command", [
    "git status && rm -rf x", "git status; rm x", "git status\nrm x", "git status & rm x",
    "git status || rm x", "git status | rm x", "git status $(rm x)", "git status `rm x`", "git log <(rm x)",
    'git log "${x:-$(rm x)}"', "git apply <<E\n$(rm x)\nE"])
def test_a_denied_part_refuses_the_whole_line(command):
    """B105, B106"""
    assert behavior(core.Permissions(allow=["bash(git *)"], deny=["bash(rm *)"]), command) == "deny"


@pytest.mark.parametrize("command", [
    "git log | sh", "git status && make", "git status; make", "git status\nmake", "git status & make",
    "git log > x", "git log >> x", "git status $(touch q)", "git status `touch q`", "git log <(touch q)",
    'git log "${x:-$(touch q)}"', "git apply <<E\n$(touch q)\nE", "git status &", "git log 2>x", "git 'log"])
def test_an_allowed_prefix_does_not_allow_a_line_that_does_more(command):
    """B105, B106"""
    assert behavior(core.Permissions(allow=["bash(git *)"]), command) == "ask"


@pytest.mark.parametrize("command", ['git commit -m "a && b; c | d"', "git log -- 'a;b'", "git"])
def test_operators_inside_quotes_are_text(command):
    """B105"""
    assert behavior(core.Permissions(allow=["bash(git *)"]), command) == "allow"


@POSIX
def test_what_is_only_asked_about_is_not_run(workspace):
    """B106"""
    permissions = core.Permissions(allow=["bash(git *)"])
    for command in ("git status $(touch q)", "git status `touch q`", 'git log "${x:-$(touch q)}"'):
        call = call_of("bash", command=command)
        assert core.dispatch(call, core.basic_tools(workspace), permissions)["is_error"]
    assert not (workspace.root / "q").exists()


@pytest.mark.parametrize("command", [
    "find . -delete", "find . -exec rm {} +", "awk 'BEGIN{system(\"id\")}'",
    "tar --checkpoint-action=exec=x -cf a b", "sed -i s/a/b/ f", "python3 x.py", "python3.12 -c 1",
    "npm test", "xargs rm", "sh x", "env FOO=1 ls", "make", "docker run x", "git -c alias.x='!sh' x", "git",
    "! ls", ". ./x", "FOO=1 ls", "./run.sh", "/bin/ls", "a && b", "ls > x", "trap 'rm x' EXIT", "time ls",
    "ssh host", "", " ", "$CMD x", "echo $(id)"])
def test_always_for_what_could_run_anything_is_for_the_exact_command(command):
    """B109, B112"""
    rule = core.narrow_rule(BASH, {"command": command})
    permissions = core.Permissions(allow=[rule])
    assert not rule.endswith(" *)") and rule != "bash" and behavior(permissions, command) == "allow"
    assert behavior(permissions, "rm -rf x") == behavior(permissions, command + " x") == "ask"


@pytest.mark.parametrize("command, rule", [
    ("ls", "bash(ls *)"), ("ls -la src", "bash(ls *)"), ("git status", "bash(git status *)"),
    ("pytest -q", "bash(pytest *)"), ("git log --oneline", "bash(git log *)"),
    ("cargo build", "bash(cargo build *)")])
def test_always_is_offered_for_the_commands_own_prefix(command, rule):
    """B112"""
    assert core.narrow_rule(BASH, {"command": command}) == rule


def test_always_stores_only_the_rule_that_was_shown(events):
    """B112"""
    asked = []

    def asker(tool, given, rule, agent):
        asked.append((rule, agent))
        return "always" if "status" in given["command"] else "no"

    permissions = core.Permissions(asker=asker)
    permissions.approve(BASH, {"command": "git status"}, "worker")
    permissions.approve(BASH, {"command": "git status -s"})
    with pytest.raises(core.ToolError, match="the user said no"):
        permissions.approve(BASH, {"command": "rm -rf x"})
    assert permissions.allow == ["bash(git status *)"] and asked[0] == ("bash(git status *)", "worker")
    assert len(asked) == 2 and [event["behavior"] for event in events] == ["allow", "allow", "deny"]


@pytest.mark.parametrize("answer, runs", [("yes", True), ("always", True), ("no", False), ("", False)])
def test_only_yes_and_always_run_a_call(answer, runs):
    permissions = core.Permissions(asker=lambda *question: answer)
    result = core.dispatch(call_of("probe"), core.registry(make_tool()), permissions)
    assert ("is_error" not in result) == runs


def test_yes_allows_once():
    answers = iter(["yes", "no"])
    permissions = core.Permissions(asker=lambda *question: next(answers))
    permissions.approve(WRITE, {"path": "a", "content": ""})
    with pytest.raises(core.ToolError):
        permissions.approve(WRITE, {"path": "a", "content": ""})


@pytest.mark.parametrize("path", [".env", "./.env", "a/../.env", ".ENV", "./A/../.Env"])
@pytest.mark.parametrize("tool", [READ, WRITE])
def test_a_denied_path_is_denied_however_it_is_written(tool, path):
    """B111"""
    permissions = core.Permissions("yes", deny=[f"{tool.name}(.env)"])
    assert permissions.decide(tool, {"path": path, "content": ""}).behavior == "deny"


@pytest.mark.parametrize("rule, name, subject, expected", [
    ("bash", "bash", "anything", True), ("bash(git *)", "bash", "git", True),
    ("bash(git *)", "bash", "gitk", False), ("bash(git *)", "read", "git x", False),
    ("bash()", "bash", "rm x", False), ("bash(echo (a))", "bash", "echo (a)", True),
    ("bash(ls [x])", "bash", "ls [x]", True), ("mcp__github__*", "mcp__github__push", "", True),
    ("write(docs/*)", "write", "docs/a.md", True), ("write(docs/*)", "write", "src/a.md", False)])
def test_a_rule_speaks_of_a_tool_and_a_pattern(rule, name, subject, expected):
    assert core.matches(rule, name, subject) is expected


def test_judging_a_very_long_command_takes_no_time():
    for command in ("rm -r " * 5_000, "env " + "a " * 20_000, "cat <<E\n" + "rm it again\n" * 3_000 + "E"):
        assert behavior(core.Permissions("yes", deny=["bash(rm *)"]), command) in ("allow", "deny")


@pytest.mark.parametrize("value, sent", [("a\udcffb", "a?b"), ({"k": ["\ud83d"]}, {"k": ["?"]}), ("你好 😀", "你好 😀")])
def test_what_cannot_be_encoded_is_made_sendable(value, sent):
    """B154: half a surrogate pair in the conversation would make every later request fail."""
    assert core.sendable(value) == sent


def test_a_number_that_json_does_not_know_is_refused():
    with pytest.raises(ValueError):
        core.sendable({"n": float("nan")})


def test_blank_text_in_a_result_of_blocks_is_left_out():
    call = {"id": "toolu_1", "name": "x", "input": {}}
    assert core.tool_result(call, [{"type": "text", "text": " "}])["content"] == "(no output)"


def test_an_image_counts_as_a_picture_and_not_as_its_bytes():
    image = {"type": "image", "source": {"type": "base64", "media_type": "image/png", "data": "A" * 1_000_000}}
    assert core.IMAGE_TOKENS <= core.estimate_tokens(image) < core.IMAGE_TOKENS + 100


@pytest.mark.parametrize("function", [lambda text: text])
def test_a_tool_without_annotations_is_a_clear_mistake_of_its_author(function):
    with pytest.raises(TypeError, match="annotate text"):
        core.Tool.of(function)
