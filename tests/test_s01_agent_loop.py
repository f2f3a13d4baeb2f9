"""The loop and its promise: however a run ends, the conversation is a valid next request."""

import json
import os
import random
import re
import signal
import subprocess
import textwrap
import threading
from types import SimpleNamespace

import pytest

import core
import s01_agent_loop
from s01_agent_loop import REPEATS, Agent
from talk import SLEEPER, accepted, interrupted_at, needs_posix, processes, prompt, results, until

ALLOWED = core.Permissions(mode="yes")


@pytest.fixture
def agent(workspace, stand_in):
    return Agent(workspace, ALLOWED)


def test_the_bare_loop_of_the_docstring_works(agent):
    source = textwrap.dedent(re.search(r" *def run.*?(?=\n\n)", s01_agent_loop.__doc__, re.DOTALL)[0])
    names = {"client": core.client(), "MODEL": "stand-in", "BASH": agent.tools["bash"].definition(), "subprocess": subprocess}
    exec(source, names)
    messages = prompt("bash echo one ++ bash echo two ;; say Done.")
    assert names["run"](messages) == "Done."
    assert [result["content"] for result in results(messages)] == ["one", "two"]


def test_an_answer_without_tools_is_the_result(agent):
    messages = prompt("say Hello.")
    assert agent.run(messages) == "Hello." and agent.stop == "end_turn"
    assert [message["role"] for message in messages] == ["user", "assistant"]


def test_results_go_back_until_no_tool_is_asked_for(agent):
    messages = prompt("bash echo one ;; bash echo two; exit 3 ;; say Done.")
    assert agent.run(messages) == "Done."
    assert [result["content"] for result in results(messages)] == ["one", "two\n[exit 3]"]


def test_several_calls_of_one_reply_are_answered_in_one_message_in_order(agent):
    messages = prompt("bash echo a ++ bash echo b ++ bash echo c ;; say Done.")
    agent.run(messages)
    calls = [block["id"] for block in messages[1]["content"]]
    assert [block["tool_use_id"] for block in messages[2]["content"]] == calls
    assert [block["content"] for block in messages[2]["content"]] == ["a", "b", "c"]


def test_the_conversation_is_plain_json(agent):
    messages = prompt("bash echo one ;; say Done.")
    agent.run(messages)
    assert json.loads(json.dumps(messages)) == messages


def test_a_run_can_be_continued_with_the_next_prompt(agent):
    messages = prompt("bash echo one ;; say First.")
    agent.run(messages)
    agent.add(messages, {"role": "user", "content": "say Second."})
    assert agent.run(messages) == "Second."


def test_a_denied_call_is_answered_and_the_run_goes_on(workspace, stand_in):
    agent, messages = Agent(workspace), prompt("bash echo hi ;; say I was told.")
    assert agent.run(messages) == "I was told."
    assert results(messages)[0]["is_error"] and "permission denied" in results(messages)[0]["content"]


def test_an_identical_call_with_an_identical_result_is_stopped(agent):
    """B001"""
    messages = prompt(" ;; ".join(["bash pwd"] * 50))
    agent.run(messages)
    assert agent.stop == "repeated" and len(results(messages)) == REPEATS
    assert accepted(agent, messages)


def test_a_call_that_gives_new_results_may_be_repeated(agent):
    messages = prompt(" ;; ".join(["bash echo x >> log; wc -l < log"] * (REPEATS + 2)) + " ;; say Done.")
    assert agent.run(messages) == "Done."


def test_the_turn_limit_ends_the_run_and_says_so(agent, events):
    """B001"""
    agent.max_turns, messages = 3, prompt(" ;; ".join(f"bash echo {n}" for n in range(9)))
    agent.run(messages)
    assert agent.stop == "max_turns" and events[-1]["reason"] == "max_turns"
    assert len(results(messages)) == 3 and accepted(agent, messages)


@pytest.mark.parametrize("fault, script, stop", [
    ("max_tokens", "say This sentence is cut somewhere.", "max_tokens"),
    ("refusal", "say I will not.", "refusal"),
    ("empty", "say nothing comes", "empty"),
    ("blank", "say nothing comes", "empty"),
])
def test_an_answer_that_is_not_whole_is_never_called_finished(agent, stand_in, events, fault, script, stop):
    """B002, B004"""
    stand_in.inject(fault)
    messages = prompt(script)
    agent.run(messages)
    assert agent.stop == stop and events[-1] | {"kind": "stop", "reason": stop} == events[-1]
    assert accepted(agent, messages)


def test_a_call_cut_by_max_tokens_is_not_run_and_the_model_is_told(agent, stand_in):
    """I2"""
    stand_in.inject("max_tokens")
    messages = prompt("bash touch made ;; say Done.")
    agent.run(messages)
    assert "cut off by max_tokens" in results(messages)[0]["content"] and results(messages)[0]["is_error"]
    assert accepted(agent, messages)


def test_a_blank_text_beside_a_call_is_not_stored(agent, stand_in):
    """B004"""
    stand_in.inject("blank")
    messages = prompt("bash echo hi ;; say Done.")
    assert agent.run(messages) == "Done."
    assert [block["type"] for block in messages[1]["content"]] == ["tool_use"]


def test_a_paused_turn_goes_on_by_itself(agent, stand_in):
    stand_in.inject("pause")
    messages = prompt("bash echo hi ;; say Done.")
    assert agent.run(messages) == "Done." and agent.stop == "end_turn"


def test_broken_tool_json_is_answered_not_run(agent, stand_in):
    """B091"""
    stand_in.inject("bad-json")
    messages = prompt("bash touch made ;; say Done.")
    agent.run(messages)
    assert "not valid JSON" in results(messages)[0]["content"]
    assert isinstance(messages[1]["content"][-1]["input"], dict) and accepted(agent, messages)


def test_an_override_composes_and_its_text_follows_the_results(workspace, stand_in):
    class Reminding(Agent):
        def run_tools(self, calls, answers):
            super().run_tools(calls, answers)
            answers["reminder"] = {"type": "text", "text": "<reminder>look at the plan</reminder>"}

    messages = prompt("bash echo a ++ bash echo b ;; say Done.")
    assert Reminding(workspace, ALLOWED).run(messages) == "Done."
    assert [block["type"] for block in messages[2]["content"]] == ["tool_result", "tool_result", "text"]


def test_events_tell_the_whole_story(agent, events):
    agent.run(prompt("bash echo hi ;; say Done."))
    assert [event["kind"] for event in events] == [
        "request", "reply", "tool_call", "decision", "tool_result", "request", "reply", "stop"]
    assert all(event["agent"] == "main" for event in events)


# Ctrl-C ---------------------------------------------------------------------------------


def test_ctrl_c_while_a_call_runs_keeps_what_it_printed_and_answers_the_rest(agent):
    """B130, B131"""
    def strike():
        until((agent.workspace.root / "going").exists)
        os.kill(os.getpid(), signal.SIGINT)

    messages = prompt("bash echo first ++ bash echo begun; touch going; sleep 60 ++ bash echo never ;; say Done.")
    threading.Thread(target=strike).start()
    with pytest.raises(KeyboardInterrupt):
        agent.run(messages)
    first, second, third = (result["content"] for result in results(messages))
    assert first == "first"
    assert "interrupted" in second and "may have had effects" in second and "begun" in second
    assert third.startswith("not run") and accepted(agent, messages)


def test_ctrl_c_at_every_line_of_the_loop_leaves_a_valid_conversation(workspace, stand_in):
    """I1: a tracer raises KeyboardInterrupt at the first line executed in s01, then the second, ..."""
    tool = core.Tool("note", "", {"type": "object", "properties": {"n": {"type": "integer"}}}, lambda n: f"noted {n}")
    line, completed = 0, False
    while not completed:
        line += 1
        agent, messages = Agent(workspace, ALLOWED, core.registry(tool)), prompt("note 1 ++ note 2 ;; say Done.")
        with interrupted_at(line, "s01_agent_loop.py") as whole:
            agent.run(messages)
            whole.append(True)
        completed = bool(whole)
        assert accepted(agent, messages), f"interrupted at line event {line}"
    assert line > 40


@needs_posix
def test_ctrl_c_at_fifty_random_instants_leaves_no_broken_rule_and_no_process(workspace, stand_in):
    """I1, I9, B134"""
    chance, interrupted = random.Random(1), 0
    Agent(workspace, ALLOWED).run(prompt("say Ready."))  # interrupting the SDK's first use only makes it complain
    for _ in range(50):
        agent = Agent(workspace, ALLOWED)
        messages = prompt(f"bash sleep 0.0137 ++ bash sleep 0.0138 ;; bash sleep 0.0139; sleep {SLEEPER} ;; say Done.")
        timer = threading.Timer(chance.uniform(0, 0.12), os.kill, (os.getpid(), signal.SIGINT))
        try:
            timer.start()
            agent.run(messages)
            pytest.fail("the long command was not interrupted")
        except KeyboardInterrupt:
            interrupted += 1
        assert accepted(agent, messages)
    assert interrupted == 50
    until(lambda: SLEEPER not in processes())


def test_ctrl_c_after_a_paused_turn_answers_nothing_that_was_not_asked(workspace, stand_in):
    """I1: the paused reply is the last message, and has no call of the interrupted batch."""
    class Interrupted(Agent):
        def add(self, messages, message):
            if any(block["type"] == "tool_use" for block in core.as_blocks(message["content"])):
                raise KeyboardInterrupt
            super().add(messages, message)

    stand_in.inject("pause")
    agent, messages = Interrupted(workspace, ALLOWED), prompt("bash echo hi ;; say Done.")
    with pytest.raises(KeyboardInterrupt):
        agent.run(messages)
    assert results(messages) == []


@pytest.mark.parametrize("name", ["", "functions.bash", "n" * 90])
def test_a_tool_name_that_the_api_refuses_can_be_sent_back(workspace, name):
    """A small local model may write any name; it is answered, and the history stays valid."""
    message = SimpleNamespace(to_dict=lambda **_: {"content": [
        {"type": "tool_use", "id": "1", "name": name, "input": {}}], "stop_reason": "tool_use"})
    [block] = core.plain_reply(message)["content"]
    assert re.fullmatch(r"[A-Za-z0-9_-]{1,64}", block["name"]) and re.fullmatch(r"toolu_\w{16,}", block["id"])


def test_each_turn_of_a_long_run_reads_the_turns_before_from_the_cache(workspace, events):
    """B137, B139: one mark that moves on, however long the conversation; the stand-in plays caching by its rules."""
    big = core.Tool("look", "", {"type": "object", "properties": {"n": {"type": "integer"}}}, lambda n: f"{n} " * 400)
    agent = Agent(workspace, ALLOWED, core.registry(big))
    agent.run(prompt(" ;; ".join(f"look {n}" for n in range(25)) + " ;; say Done."))
    usage = [event["usage"] for event in events if event["kind"] == "reply"]
    sizes = [core.prompt_tokens(one) for one in usage]
    read = [one["cache_read_input_tokens"] for one in usage]
    assert sizes[8] > 2_000 and read[9:] == sizes[8:-1]  # once it is long enough: what one turn sent, the next reads


def test_offline_needs_no_setting(workspace, events):
    """Without key and endpoint the client starts a stand-in of its own."""
    agent = Agent(workspace, ALLOWED)
    assert agent.model == core.STAND_IN_MODEL
    assert agent.run(prompt("say Hello.")) == "Hello."
