"""Other back ends: s01's agent against a server that is not the stand-in (endpoint.py)."""

import json
import os
import re
import socket

import pytest

import core
import s01_agent_loop
import s06_compact
from endpoint import OVERLOADED, altered, failing, page, with_input
from program import Program

@pytest.fixture
def agent(workspace):
    return s01_agent_loop.Agent(workspace, core.Permissions(mode="yes"))


def prompt(text: str = "Do it.") -> list[dict]:
    return [{"role": "user", "content": text}]


def breaches(messages: list[dict]) -> list[str]:
    """Every rule of the Messages API on order and content that a conversation breaks.

    Neighbours of equal role count as one message, as they do for the API.
    """
    joined: list[tuple[str, list[dict]]] = []
    for message in messages:
        content = message["content"]
        blocks = [{"type": "text", "text": content}] if isinstance(content, str) else list(content)
        if joined and joined[-1][0] == message["role"]:
            joined[-1][1].extend(blocks)
        else:
            joined.append((message["role"], blocks))
    found, used = [], set()
    if joined and joined[0][0] != "user":
        found.append("the first message is not the user's")
    for index, (role, blocks) in enumerate(joined):
        kinds = [block["type"] for block in blocks]
        if not blocks:
            found.append(f"{index}: empty")
        if any(block["type"] == "text" and not block["text"].strip() for block in blocks):
            found.append(f"{index}: blank text")
        if "tool_result" in kinds and kinds != sorted(kinds, key=lambda kind: kind != "tool_result"):
            found.append(f"{index}: results are not first")
        asked = [block["id"] for block in joined[index - 1][1] if block["type"] == "tool_use"] if index else []
        answered = [block["tool_use_id"] for block in blocks if block["type"] == "tool_result"]
        if role == "user" and sorted(answered) != sorted(asked):
            found.append(f"{index}: asked {asked}, answered {answered}")
        if index == len(joined) - 1 and "tool_use" in kinds:
            found.append(f"{index}: calls without an answer")
        ids = [block["id"] for block in blocks if block["type"] == "tool_use"]
        if len(set(ids)) < len(ids) or used & set(ids):
            found.append(f"{index}: an id is used twice")
        if not all(re.fullmatch("[a-zA-Z0-9_-]+", name) for name in ids):
            found.append(f"{index}: an id with characters the API refuses")
        used |= set(ids)
    return found


def notices(events: list[dict]) -> list[str]:
    return [event["text"] for event in events if event["kind"] == "notice"]


def failure(agent, messages: list[dict]) -> str:
    """The message of the ModelError a run ends in: one clear line."""
    with pytest.raises(core.ModelError) as caught:
        agent.run(messages)
    line = str(caught.value)
    assert line.strip() and "\n" not in line and len(line) < 500 and "Traceback" not in line
    return line


# ------------------------------------------------------------------------------- the validator itself

CALL = {"role": "assistant", "content": [{"type": "tool_use", "id": "a", "name": "bash", "input": {}}]}
RESULT = {"type": "tool_result", "tool_use_id": "a", "content": "x"}


@pytest.mark.parametrize("messages", [
    [{"role": "assistant", "content": "Hi."}],
    [*prompt(" ")],
    [*prompt(), CALL],
    [*prompt(), CALL, *prompt()],
    [*prompt(), CALL, {"role": "user", "content": [RESULT, RESULT]}],
    [*prompt(), CALL, {"role": "user", "content": [{"type": "text", "text": "Well:"}, RESULT]}],
    [*prompt(), {"role": "user", "content": [RESULT]}],
    [*prompt(), CALL, {"role": "user", "content": [RESULT]}, CALL, {"role": "user", "content": [RESULT]}],
    [*prompt(), {"role": "assistant", "content": []}],
], ids=["first role", "blank", "unanswered at the end", "unanswered", "answered twice", "text first", "orphan",
        "id twice", "empty"])
def test_the_validator_of_this_file_sees_each_kind_of_breach(messages):
    """Without this, "always a valid history" below would prove nothing."""
    assert breaches(messages)


def test_the_validator_of_this_file_accepts_a_regular_conversation():
    assert not breaches([*prompt(), CALL, {"role": "user", "content": [RESULT, {"type": "text", "text": "Go on."}]},
                         *prompt(), {"role": "assistant", "content": "Done."}])


# ------------------------------------------------------------------------------- a whole run


def test_a_run_of_200_turns_completes_against_a_thin_back_end(server, agent):
    """Contract D: only text, tool_use and tool_result are portable; the loop needs no more."""
    server.calls, messages = 199, prompt()
    assert agent.run(messages) == "All done."
    assert len(server.requests) == 200 and agent.stop == "end_turn"
    assert not breaches(messages)


def test_every_request_of_a_run_is_valid_and_asks_only_for_what_is_portable(server, agent):
    """Contract D: cache marks, thinking and metadata are optional extras other servers may refuse."""
    agent.run(prompt())
    for request in server.requests:
        assert not breaches(request["messages"])
        assert set(request) <= {"model", "max_tokens", "system", "tools", "messages", "stream"}
        assert "cache_control" not in json.dumps(request)


def test_a_base_url_without_a_key_works(server, agent):
    """Contract D: Ollama, llama.cpp and LM Studio take any key; the SDK refuses to send none."""
    assert agent.run(prompt()) == "All done."


def test_a_base_url_with_a_dummy_key_works(server, agent, monkeypatch):
    monkeypatch.setenv("ANTHROPIC_API_KEY", "dummy")
    assert agent.run(prompt()) == "All done."


@pytest.mark.parametrize("path", ["/v1/", "/v1/messages"])
def test_a_base_url_given_with_the_path_of_the_api_works(path, server, agent, monkeypatch):
    """Contract D: the SDK adds /v1/messages by itself; given twice it would be a 404."""
    monkeypatch.setenv("ANTHROPIC_BASE_URL", server.url + path)
    assert agent.run(prompt()) == "All done."


def test_the_window_of_a_model_nobody_knows_can_be_told_and_bounds_its_replies(server, agent, monkeypatch):
    """vLLM refuses a request whose prompt and max_tokens together are larger than the window."""
    assert agent.window == core.ModelInfo.window
    monkeypatch.setenv("CONTEXT_WINDOW", "8192")
    agent.run(prompt())
    assert agent.window == 8192 and {request["max_tokens"] for request in server.requests} == {4096}
    assert core.model_info("claude-haiku-4-5").window == 200_000  # known ones are as they are


# ------------------------------------------------------------------------------- faults that pass

def test_a_call_is_not_run_twice_when_the_request_after_it_fails(server, agent, events):
    """Only the request is tried again; what the tools did stays done."""
    server.faults[3] = OVERLOADED
    agent.run(messages := prompt())
    assert sum(event["kind"] == "tool_call" for event in events) == server.calls
    assert sum(message["role"] == "assistant" for message in messages) == server.calls + 1


def test_several_different_faults_in_one_run_are_survived(server, agent, events):
    """The bound is on the retries of one request, not on those of a whole run."""
    server.calls = 10
    server.faults.update({number: OVERLOADED for number in (2, 3, 5, 6, 7, 9, 10, 12)})
    assert agent.run(messages := prompt()) == "All done."
    assert len(notices(events)) == 8
    assert not breaches(messages)


# ------------------------------------------------------------------------------- faults that last

REFUSALS = {
    "400 thin": (lambda handler, reply: handler.answer(400, {"error": "template\nfailed"}), "template failed"),
    "400 message": (lambda handler, reply: handler.answer(400, {"message": "no such field"}), "no such field"),
    "400 model": (failing(400, "invalid_request_error", "Invalid model name passed in model=x."), "MODEL_ID"),
    "422 thin": (lambda handler, reply: handler.answer(422, {"detail": "no such field"}), "refused"),
    "403 text": (lambda handler, reply: handler.answer(403, b"no", "text/plain"), "403"),
}


@pytest.mark.parametrize("fault, words", REFUSALS.values(), ids=REFUSALS)
def test_a_refusal_is_one_clear_line_at_once(fault, words, server, agent, events):
    """Contract A4: trying these again cannot help, and a thin back end has error shapes of its own."""
    server.always, messages = fault, prompt()
    assert words in failure(agent, messages)
    assert not notices(events) and len(server.requests) == 3
    assert not breaches(messages)


def test_an_error_page_is_not_shown_as_html(server, agent):
    """Contract A4: the body of a 413 or 502 comes from a proxy; its markup tells a person nothing."""
    server.always = page(413)
    assert "<" not in failure(agent, prompt())


def test_a_200_answer_that_is_a_page_is_one_clear_line(server, agent):
    """A base URL of some other web server: the SDK hands the text through without an error."""
    server.always, messages = page(200), prompt()
    failure(agent, messages)
    assert not breaches(messages)


def test_a_200_answer_that_is_other_json_is_one_clear_line(server, agent):
    """An OpenAI-style server answers with `choices`; the SDK builds a Message without content."""
    server.always = lambda handler, reply: handler.answer(200, {"id": "x", "choices": [{"message": {"content": "Hi"}}]})
    messages = prompt()
    failure(agent, messages)
    assert not breaches(messages)


def test_an_error_that_comes_as_a_200_answer_is_shown(server, agent):
    """Some gateways put what went wrong into the body alone."""
    server.always = lambda handler, reply: handler.answer(200, {"error": {"message": "quota used up"}})
    assert "quota used up" in failure(agent, prompt())


OVERFLOWS = {  # no two servers say it with the same words, or with the same status
    "llama.cpp": (400, "request (17024 tokens) exceeds the available context size (16384 tokens), try increasing it"),
    "llama.cpp, later": (500, "Context size has been exceeded."),
    "vLLM": (400, "This model's maximum context length is 4096 tokens. However, you requested 20000 tokens"),
    "Bedrock": (400, "Input is too long for requested model."),
    "Kimi": (400, "Your request exceeded model token limit: 262144 (requested: 291351)"),
    "MiniMax": (400, "invalid params, context window exceeds limit"),
    "GLM": (400, "Prompt exceeds max length"),
    "Gemini": (422, "The input token count exceeds the maximum number of tokens allowed"),
}


@pytest.mark.parametrize("status, words", OVERFLOWS.values(), ids=OVERFLOWS)
def test_a_prompt_that_is_too_long_is_known_by_everybodys_words(status, words, server, agent, events):
    """What compaction (s06) waits for; trying the same again cannot help, whatever the status."""
    server.always = failing(status, "invalid_request_error", words)
    with pytest.raises(core.ModelError) as caught:
        agent.run(prompt())
    assert caught.value.too_long and not notices(events)


@pytest.mark.parametrize("status, words", [
    (400, "max_tokens: 16000 > 8192, which is the maximum allowed number of output tokens for this model"),
    (400, "This model does not support image input"), (401, "Your token has reached its time limit")])
def test_other_refusals_are_not_taken_for_a_prompt_that_is_too_long(status, words, server, agent):
    """Otherwise s06 would compact a conversation that is not the reason."""
    server.always = failing(status, "invalid_request_error", words)
    with pytest.raises(core.ModelError) as caught:
        agent.run(prompt())
    assert not caught.value.too_long


@pytest.fixture
def closed_port():
    """The URL of a port that nobody listens on, and that nobody else gets meanwhile."""
    with socket.socket() as unused:
        unused.bind(("127.0.0.1", 0))
        yield f"http://127.0.0.1:{unused.getsockname()[1]}"


def test_the_program_says_in_one_line_that_its_base_url_is_none(workspace):
    """Invariant I3: the client is built ahead in a thread, whose traceback nobody asked for."""
    code, out, err = Program(s01_agent_loop.__file__, "-p", "Do it.", folder=workspace.root,
                             environment={**os.environ, "ANTHROPIC_BASE_URL": "http://[::1"}).ended()
    assert code == 1 and out == "" and "ANTHROPIC_BASE_URL" in err and "Exception" not in err


class Waiting(BaseException):
    """The run was about to wait."""


def stop_at_notice(error: type[BaseException]):
    """A listener that ends the run, as Ctrl-C would, when a wait is announced."""
    def listener(event: dict) -> None:
        if event["kind"] == "notice":
            raise error
    return listener


def test_a_base_url_nobody_listens_on_is_told_before_the_wait(closed_port, agent, monkeypatch, events):
    """The first thing that happens to somebody who forgot to start the local server."""
    monkeypatch.setenv("ANTHROPIC_BASE_URL", closed_port)
    core.listeners.append(stop_at_notice(KeyboardInterrupt))
    with pytest.raises(KeyboardInterrupt):
        agent.run(messages := prompt())
    assert "refused" in notices(events)[0] and "\n" not in notices(events)[0]
    assert messages == prompt()


def test_a_connection_refused_says_so_and_where_to_look(server, agent, monkeypatch, closed_port):
    """The SDK's own text is "Connection error."; the reason is one exception further down."""
    def move(event):  # from the last attempt on, nobody is there
        if event["kind"] == "notice" and f"({core.RETRIES} of" in event["text"]:
            monkeypatch.setenv("ANTHROPIC_BASE_URL", closed_port)

    core.listeners.append(move)
    server.always = OVERLOADED
    line = failure(agent, prompt())
    assert "refused" in line and "ANTHROPIC_BASE_URL" in line


@pytest.mark.parametrize("url", ["127.0.0.1:9", "localhost", "ftp://127.0.0.1", "http://[::1"])
def test_a_base_url_that_is_none_is_one_clear_line_at_once(url, agent, monkeypatch):
    """A typing error in the environment: no traceback, and no retries that cannot help."""
    monkeypatch.setenv("ANTHROPIC_BASE_URL", url)
    core.listeners.append(stop_at_notice(Waiting))
    assert "ANTHROPIC_BASE_URL" in failure(agent, prompt())


@pytest.mark.parametrize("fault", [OVERLOADED, page(200)], ids=["529", "page"])
def test_a_run_goes_on_where_a_failure_ended_it(fault, server, agent):
    """Invariants I1 and I3: the conversation is kept and is a valid next request."""
    server.always, messages = fault, prompt()
    failure(agent, messages)
    server.always = None
    assert agent.run(messages) == "All done."
    messages += prompt("And again.")
    assert agent.run(messages) == "All done."
    assert not breaches(messages) and not any(breaches(request["messages"]) for request in server.requests)


# ------------------------------------------------------------------------------- odd answers


def test_tool_input_sent_as_json_text_is_understood(server, agent, events):
    """Thin back ends pass a model's arguments on as the text it wrote."""
    server.faults[1] = with_input('{"command": "echo from-text"}')
    assert agent.run(messages := prompt()) == "All done."
    assert "from-text" in json.dumps(messages)
    assert isinstance(messages[1]["content"][0]["input"], dict)  # the API takes nothing else back


@pytest.mark.parametrize("given", ['{"command": "ec', "[1]", None, [], 7],
                         ids=["cut", "list text", "null", "list", "number"])
def test_tool_input_that_is_no_object_is_answered_and_not_run(given, server, agent):
    """Contract D: lost or broken arguments become an error the model reads, never a guess."""
    server.faults[1] = with_input(given)
    assert agent.run(messages := prompt()) == "All done."
    assert messages[2]["content"][0]["is_error"]
    assert isinstance(messages[1]["content"][0]["input"], dict)
    assert not breaches(messages)


def test_odd_answers_write_nothing_past_the_events(server, agent, recwarn, capfd):
    """Invariant I8: the SDK's serializer warns, at length, about each field it did not expect."""
    server.faults[1] = with_input('{"command": "true"}')
    agent.run(prompt())
    assert not recwarn.list
    assert capfd.readouterr() == ("", "")


def test_missing_usage_is_tolerated(server, agent, events):
    """Contract A3: other back ends may leave out more than the cache fields."""
    server.always = altered(usage=None)
    assert agent.run(prompt()) == "All done."
    assert [core.prompt_tokens(e["usage"]) for e in events if e["kind"] == "reply"] == [10, 10, 0, 0, 0]


@pytest.mark.parametrize("reason", ["", None, "stop", "tool_calls"])
def test_an_unknown_stop_reason_is_tolerated(reason, server, agent):
    """Contract D: Ollama may send ""; what counts is whether the reply asks for tools (invariant I2)."""
    server.always = lambda handler, reply: handler.answer(200, reply | {"stop_reason": reason})
    assert agent.run(messages := prompt()) == "All done."
    assert len(server.requests) == server.calls + 1 and not breaches(messages)


def test_a_call_in_a_reply_as_long_as_it_may_be_is_not_run_whatever_the_stop_reason_says(server, agent, events):
    """A proxy may call a reply whole that was cut, and close the brackets of its call (invariant I2)."""
    usage = {"input_tokens": 10, "output_tokens": s01_agent_loop.MAX_TOKENS}
    server.faults[2] = lambda handler, reply: handler.answer(200, reply | {"usage": usage})
    assert agent.run(messages := prompt()) == "All done."
    assert "cut off by max_tokens" in json.dumps(messages[4]) and not breaches(messages)
    assert sum(event["kind"] == "tool_call" for event in events) == server.calls - 1


@pytest.mark.parametrize("reason, whole", [("", True), (None, True), ("stop", True), ("max_tokens", False)])
def test_a_summary_is_whole_unless_its_stop_reason_says_that_it_was_cut(reason, whole, server, workspace):
    """Compaction must work with the back ends that send another word for end_turn, or none."""
    server.calls = 0
    server.faults[1] = lambda handler, reply: handler.answer(200, reply | {"stop_reason": reason})
    agent = s06_compact.Compacting(workspace)
    if whole:
        assert agent.summarise(prompt(), "", 10_000) == "All done."
    else:
        with pytest.raises(core.ModelError, match="not whole"):
            agent.summarise(prompt(), "", 10_000)


THINKING = {"type": "thinking", "thinking": "Hm.", "signature": "c2lnbmVk"}


@pytest.mark.parametrize("content", [
    [], None, [{"type": "text", "text": ""}], [{"type": "text", "text": " \n"}], [THINKING],
    [THINKING, {"type": "text", "text": ""}]],
    ids=["none", "null", "empty text", "blank text", "thinking alone", "thinking and blank text"])
def test_an_answer_without_text_leaves_a_history_that_can_be_sent(content, server, agent):
    """B004; contract A2 rule 5: the API refuses blank text and an empty message, and sends both itself."""
    server.faults[3] = altered(content=content) if content is not None else (
        lambda handler, reply: handler.answer(200, reply | {"content": None, "stop_reason": "end_turn"}))
    messages = prompt()
    agent.run(messages)
    messages += prompt("Go on.")
    assert agent.run(messages) == "All done."
    assert not breaches(messages)
    assert "thinking" not in [message["content"][-1]["type"] for message in messages[1::2]]  # that alone says nothing


def test_a_block_of_an_unknown_kind_is_tolerated(server, agent):
    """Contract A3: new block types must not end a run."""
    server.faults[2] = lambda handler, reply: handler.answer(
        200, reply | {"content": [{"type": "reasoning", "summary": "Hm."}, *reply["content"]]})
    assert agent.run(messages := prompt()) == "All done."
    assert not breaches(messages)


def two_calls(first: str, second: str):
    """The regular call twice in one reply, under these ids; the second one fails."""
    return lambda handler, reply: handler.answer(200, reply | {"content": [
        reply["content"][0] | {"id": first}, reply["content"][0] | {"id": second, "input": {"command": "exit 3"}}]})


def test_two_calls_in_one_reply_are_answered_in_one_message_in_their_order(server, agent):
    """Contract A2 rule 1: all results in the next user message."""
    server.faults[1] = two_calls("one", "two")
    agent.run(messages := prompt())
    assert [block["tool_use_id"] for block in messages[2]["content"]] == [call["id"] for call in messages[1]["content"]]
    assert [block["content"] for block in messages[2]["content"]] == ["1", "[exit 3]"]
    assert not breaches(messages)


def run_or_fail(agent, messages: list[dict]) -> None:
    """Runs to the end or into one clear line; the history is valid and can be gone on from."""
    try:
        agent.run(messages)
    except core.ModelError as error:
        assert "\n" not in str(error)
    assert not breaches(messages)


def test_two_calls_with_the_same_id_leave_a_valid_history(server, agent):
    """Invariant I1: results are kept by id, so the second would replace the first and be sent twice."""
    server.faults[3] = two_calls("call_0", "call_0")
    run_or_fail(agent, messages := prompt())
    assert agent.run(messages) == "All done."
    assert not breaches(messages)


def test_an_id_that_each_reply_uses_anew_leaves_a_valid_history(server, agent):
    """Contract A2 rule 4: back ends that number the calls of each reply from 0, and the API after /model."""
    server.always = lambda handler, reply: handler.answer(200, reply | {"content": [
        block | {"id": "call_0"} if block["type"] == "tool_use" else block for block in reply["content"]]})
    run_or_fail(agent, prompt())


def test_an_id_with_characters_the_api_refuses_leaves_a_valid_history(server, agent):
    """Contract A2 rule 4: some models write ids such as functions.bash:0."""
    server.faults[3] = lambda handler, reply: handler.answer(
        200, reply | {"content": [reply["content"][0] | {"id": "functions.bash:0"}]})
    run_or_fail(agent, prompt())


MALFORMED = {
    "content is text": "Hello.", "block is text": ["Hello."], "block without type": [{"text": "Hello."}],
    "text is null": [{"type": "text", "text": None}],
    "call without id": [{"type": "tool_use", "name": "bash", "input": {"command": "true"}}],
    "call without name": [{"type": "tool_use", "id": "call_x", "input": {"command": "true"}}],
}


@pytest.mark.parametrize("content", MALFORMED.values(), ids=MALFORMED)
def test_malformed_content_is_one_clear_line_or_tolerated(content, server, agent):
    """Invariants I1 and I3: the SDK checks nothing, so what comes may have any shape."""
    server.faults[3] = altered(content=content)
    run_or_fail(agent, messages := prompt())
    messages += prompt("Go on.")
    assert agent.run(messages) == "All done."
