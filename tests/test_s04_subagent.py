"""A subtask in a conversation of its own: what comes back, what stays outside, and every way it can end."""

import json
import os
import signal
import threading

import pytest

import core
from endpoint import ThinServer, altered
from s01_agent_loop import NO_TEXT
from s04_subagent import (
    DEMO,
    TURNS,
    Spawning,
    Subagent,
    calls_made,
    changed_files,
    last_words,
    report,
)
from talk import SLEEPER, accepted, interrupted_at, played, processes, results, until

ALLOWED = core.Permissions(mode="yes")


def spawn(prompt, **more):
    """A script step that spawns a subagent, which plays `prompt`."""
    return f"spawn_subagent {json.dumps({'prompt': prompt, **more})}"


@pytest.fixture
def agent(workspace, stand_in):
    return Spawning(workspace, permissions=ALLOWED)


# the pure half ------------------------------------------------------------------------------


def conversation(*pairs):
    """Messages with one call each; a pair is (call's name, input, is_error)."""
    messages = [{"role": "user", "content": "do it"}]
    for number, (name, given, failed) in enumerate(pairs):
        call = {"type": "tool_use", "id": f"toolu_{number}", "name": name, "input": given}
        messages += [{"role": "assistant", "content": [{"type": "text", "text": f"step {number}"}, call]},
                     {"role": "user", "content": [core.tool_result(call, "x", failed)]}]
    return messages


def test_calls_come_in_order_with_their_success():
    messages = conversation(("read", {"path": "a"}, False), ("bash", {"command": "b"}, True))
    assert [(call["name"], succeeded) for call, succeeded in calls_made(messages)] == [("read", True), ("bash", False)]


def test_a_call_without_a_result_did_not_succeed():
    assert calls_made(conversation(("read", {"path": "a"}, False))[:-1])[0][1] is False


def test_changed_files_are_named_once_and_only_if_the_change_was_made():
    messages = conversation(("write", {"path": "a"}, False), ("edit", {"path": "b"}, True), ("read", {"path": "c"}, False),
                            ("edit", {"path": "a"}, False), ("revert", {"path": "d"}, False))
    assert changed_files(messages) == ["a", "d"]


def test_the_last_words_are_the_newest_text_of_the_model():
    messages = conversation(("read", {"path": "a"}, False))
    assert last_words(messages) == "step 0" and last_words(messages[:1]) == ""
    silent = {"role": "assistant", "content": [{"type": "thinking", "thinking": "hm", "signature": "s"}]}
    assert last_words([*messages, silent]) == "step 0"
    assert last_words([*messages, {"role": "assistant", "content": [NO_TEXT]}]) == "step 0"
    blocks = [{"type": "text", "text": "one"}, {"type": "text", "text": "two"}]
    assert last_words([*messages, {"role": "assistant", "content": blocks}]) == "one\n\ntwo"


def test_a_report_says_why_and_what_was_done():
    text = report("it broke", conversation(("write", {"path": "a"}, False), ("bash", {"command": "b"}, True)))
    for words in ("did NOT finish: it broke", "2 calls", "a.", "Its last words: step 1"):
        assert words in text
    assert "It had said nothing" in report("it broke", []) and "none" in report("it broke", [])


# what comes back ------------------------------------------------------------------------------


def test_only_the_final_text_comes_back(agent, workspace):
    (workspace.root / "a.txt").write_text("secret of a\n")
    messages = played(agent, spawn("read a.txt ;; bash echo noise ;; say It is a secret.") + " ;; say Done.")
    assert [result["content"] for result in results(messages)] == ["It is a secret."]
    assert "secret of a" not in json.dumps(messages) and len(messages) == 4


def test_the_subagent_starts_with_nothing_but_its_prompt(agent, stand_in):
    played(agent, f"bash echo before ;; {spawn('say Hello.', description='greet')}")
    child = next(request for request in stand_in.requests if "You are a subagent" in json.dumps(request["body"]["system"]))
    assert child["body"]["messages"] == [{"role": "user", "content": "say Hello."}]
    assert agent.request([])["system"] != child["body"]["system"] and str(agent.workspace.root) in child["body"]["system"]


def test_it_works_in_the_parents_workspace_under_the_parents_permissions(workspace, stand_in):
    rules = core.Permissions(mode="yes", deny=["bash(rm *)"])
    agent = Spawning(workspace, permissions=rules)
    played(agent, spawn("write a.txt :: kept ;; bash rm a.txt ;; say Tried."))
    assert (workspace.root / "a.txt").read_text() == "kept"
    assert "reverted" in results(played(agent, "revert a.txt"))[0]["content"], "its changes are known to the parent"


def test_a_question_for_permission_names_the_subagent(workspace, stand_in):
    asked = []
    rules = core.Permissions(asker=lambda tool, given, rule, agent: asked.append((tool.name, agent)) or "no")
    played(Spawning(workspace, permissions=rules), spawn("bash date ;; say Not allowed."))
    assert asked == [("bash", "main/sub-1")]


def test_spawning_itself_can_be_denied(workspace, stand_in):
    agent = Spawning(workspace, permissions=core.Permissions(mode="yes", deny=["spawn_subagent"]))
    assert "permission denied" in results(played(agent, spawn("say Hello.")))[0]["content"]


def test_a_long_answer_arrives_whole_up_to_the_cap(agent):
    """B036"""
    text = "word " * 5_000
    assert results(played(agent, spawn(f"say {text}")))[0]["content"] == text.strip()


def test_an_answer_over_the_cap_is_clipped_with_a_mark(agent):
    """B036: 60 KB"""
    result = results(played(agent, spawn(f"say begin {'word ' * 12_000} end")))[0]
    assert result["content"].startswith("begin word") and result["content"].endswith("word  end")
    assert "characters left out" in result["content"] and not result.get("is_error")


def test_an_answer_in_several_blocks_one_of_them_empty_is_joined(workspace, monkeypatch):
    """B036: a back end that ends with a blank block"""
    with ThinServer(calls=0) as server:
        threading.Thread(target=server.serve_forever, args=(0.01,), daemon=True).start()
        monkeypatch.setenv("ANTHROPIC_BASE_URL", server.url)
        call = {"type": "tool_use", "id": "toolu_1", "name": "spawn_subagent", "input": {"prompt": "look"}}
        blocks = [{"type": "text", "text": text} for text in ("First.", "Second.", "")]
        server.faults.update({1: altered(content=[call], stop_reason="tool_use"), 2: altered(content=blocks)})
        messages = played(Spawning(workspace, permissions=ALLOWED), "go")
        server.shutdown()
    assert results(messages)[0]["content"] == "First.\n\nSecond."


@pytest.mark.parametrize("given", ["", " \n"])
def test_an_empty_prompt_is_refused(workspace, given):
    agent = Spawning(workspace, permissions=ALLOWED, model="none")
    call = {"id": "toolu_1", "name": "spawn_subagent", "input": {"prompt": given}}
    assert "prompt is empty" in agent.run_tool(call)["content"]


# no tree of subagents ----------------------------------------------------------------------------


def test_a_subagent_is_not_offered_the_tool(agent, stand_in, events):
    """B037"""
    messages = played(agent, spawn('call spawn_subagent {"prompt": "say deeper"} ;; say I could not.'))
    offered = [sorted(tool["name"] for tool in request["body"]["tools"]) for request in stand_in.requests]
    assert offered[1] == sorted(core.BASE_TOOLS) and set(offered[0]) == {*core.BASE_TOOLS, "spawn_subagent"}
    refused = next(event for event in events if event["kind"] == "tool_result" and event["agent"] == "main/sub-1")
    assert "no tool 'spawn_subagent'" in refused["content"]
    assert results(messages)[0]["content"] == "I could not."


def test_a_subagent_that_insists_on_spawning_is_ended(agent, events):
    """B037"""
    insisting = " ;; ".join(['call spawn_subagent {"prompt": "again"}'] * 40)
    messages = played(agent, spawn(insisting))
    assert "did NOT finish" in results(messages)[0]["content"]
    assert {event["agent"] for event in events if "agent" in event} == {"main", "main/sub-1"}


# how it can end ------------------------------------------------------------------------------------


@pytest.mark.parametrize("fault, words", [
    ("refusal", "refused"), ("max_tokens", "cut off"), ("empty", "without a word"), ("blank", "without a word"),
    ("401", "could not be asked"), ("400:prompt", "too long")])
def test_an_end_that_is_no_answer_is_an_error_with_what_was_done(agent, stand_in, fault, words):
    stand_in.inject("ok", "ok", fault)
    messages = played(agent, spawn("say I begin. ++ write a.txt :: x ;; say All is completed now.") + " ;; say I see.")
    result = results(messages)[0]
    assert result["is_error"] and "did NOT finish" in result["content"] and words in result["content"]
    assert "1 call." in result["content"] and "a.txt" in result["content"]
    assert "I begin." in result["content"] or fault == "max_tokens" and "All is" in result["content"]
    assert accepted(agent, messages)


def test_the_turn_limit_is_an_error_with_what_was_done(agent):
    endless = " ;; ".join(["write a.txt :: x", *(f"bash echo {n}" for n in range(2 * TURNS))])
    result = results(played(agent, spawn(endless)))[0]
    assert result["is_error"] and f"limit of {TURNS} turns" in result["content"]
    assert f"{TURNS} calls" in result["content"] and "a.txt" in result["content"]


def test_the_parent_goes_on_after_a_failure(agent):
    messages = played(agent, spawn(" ;; ".join(["bash pwd"] * 9)) + f" ;; {spawn('say Second.')} ;; say Done.")
    assert [result.get("is_error", False) for result in results(messages)] == [True, False]
    assert core.text_of(messages[-1]["content"]) == "Done."


def test_ctrl_c_in_the_subagent_stops_all_and_tells_what_was_done(agent):
    """B039: two finished calls and a text are in the parent's result, and nothing is left running."""
    script = f'bash echo first ++ {spawn(f"say Half way. ++ write a.txt :: x ;; bash sleep {SLEEPER}; true ;; say Done.")} ++ bash echo never'

    def interrupt(event):
        if event["kind"] == "tool_call" and "sleep" in json.dumps(event["input"]) and event["agent"] == "main/sub-1":
            threading.Timer(0.1, os.kill, (os.getpid(), signal.SIGINT)).start()

    core.listeners.append(interrupt)
    messages = [{"role": "user", "content": script}]
    with pytest.raises(KeyboardInterrupt):
        agent.run(messages)
    first, child, never = results(messages)
    assert first["content"] == "first" and never["content"].startswith("not run")
    for words in ("interrupted", "did NOT finish", "a.txt", "Half way.", "2 calls"):
        assert words in child["content"]
    assert child["is_error"] and accepted(agent, messages)
    until(lambda: SLEEPER not in processes())


def test_ctrl_c_before_the_subagents_first_reply_leaves_a_valid_conversation(agent):
    def interrupt(event):
        if event["kind"] == "request" and event["agent"] == "main/sub-1":
            signal.raise_signal(signal.SIGINT)

    core.listeners.append(interrupt)
    messages = [{"role": "user", "content": spawn("say Hello.")}]
    with pytest.raises(KeyboardInterrupt):
        agent.run(messages)
    assert "It had said nothing." in results(messages)[0]["content"] and accepted(agent, messages)


def test_ctrl_c_at_every_line_of_this_session_leaves_a_valid_conversation(agent):
    """I1: a tracer raises KeyboardInterrupt at the first line executed in s04, then the second, ..."""
    line, completed = 0, False
    while not completed:
        line += 1
        messages = [{"role": "user", "content": spawn("bash true ;; say Hello.")}]
        with interrupted_at(line, "s04_subagent.py") as whole:
            agent.run(messages)
            whole.append(True)
        completed = bool(whole)
        assert accepted(agent, messages)
    assert line > 25


# what is seen -----------------------------------------------------------------------------------------


def test_events_carry_the_subagents_name_and_its_parent(agent, events):
    played(agent, spawn("bash echo hi ;; say Hello."))
    inside = [event for event in events if event.get("agent") == "main/sub-1"]
    assert {event["kind"] for event in inside} == {
        "user", "request", "reply", "tool_call", "decision", "tool_result", "stop"}
    assert {event["parent"] for event in inside} == {"main"}


def test_each_subagent_has_a_name_of_its_own(agent, events):
    played(agent, f"{spawn('say a.')} ++ {spawn('say b.')} ;; {spawn('say c.')}")
    assert {event["agent"] for event in events if "agent" in event} == {"main", "main/sub-1", "main/sub-2", "main/sub-3"}


def test_what_stayed_outside_is_shown_and_summed(agent, workspace, events):
    (workspace.root / "a.txt").write_text("x" * 1_000 + "\n" + "y" * 1_900)
    messages = played(agent, spawn("read a.txt ;; say Letters.", description="look\ninto it"))
    sizes = [core.prompt_tokens(event["usage"]) for event in events
             if event["kind"] == "reply" and event["agent"] == "main/sub-1"]
    assert agent.outside == sizes[-1] - sizes[0] > 700 > core.estimate_tokens(messages)
    assert [event["text"] for event in events if event["kind"] == "notice"] == [
        f"main/sub-1 (look into it): 1 call, {agent.outside} tokens stayed outside"]


def test_a_subagent_that_never_ran_kept_nothing_outside(agent):
    assert Subagent(agent, "sub-9").outside() == 0


def test_the_demo_explores_the_same_in_both_places():
    assert DEMO[0]["script"].rpartition(" ;; ")[0] in DEMO[1]["script"]
