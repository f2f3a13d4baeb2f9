"""Protocols: every request ends in exactly one way, nobody waits in a circle, and no plan means no change."""

import itertools
import json
import os
import signal
import threading

import pytest
from test_s09_teams import contents

import core
from s09_teams import LEAD, Mailbox, Team
from s10_protocols import (
    DEMO,
    IDLE,
    PLAN,
    REQUESTING,
    RESPONDING,
    TRANSITIONS,
    WAITING,
    AgentState,
    Chairing,
    Exchange,
    PlanningTeammate,
    PlanGate,
    Protocol,
    ProtocolError,
    show_protocol,
)
from talk import SLEEPER, accepted, needs_posix, played, results, texts, until

ENDS = {"answered", "refused", "timed out", "cancelled"}


def rests(lead):
    return not lead.wait_for_mail(0)


def spawn(lead, name, prompt="say ready"):
    """A member that has done what the prompt says; its "ready" is read."""
    lead.spawn_teammate(name, "writer", prompt)
    until(lambda: rests(lead))
    if prompt == "say ready":
        lead.request([])
    return lead.teammates[name]


def step(tool, **given):
    return f"{tool} {json.dumps(given)}"


def mail(lead, kind):
    return [message for message in lead.team.mailbox.receive(LEAD) if message["type"] == kind]


def statuses(lead):
    config = json.loads(lead.team.config.read_bytes())
    return {member["name"]: member["status"] for member in config["members"]}


class Quick(Chairing):
    shutdown_seconds = 0.3


@pytest.fixture
def lead(workspace, stand_in):
    agent = Quick(workspace, permissions=core.Permissions(mode="yes"))
    yield agent
    agent.dismiss()


# the machine ----------------------------------------------------------------------------------


OPERATIONS = {
    "a asks b": lambda protocol, now: protocol.ask("a", "b", "message", now, 10),
    "b asks a": lambda protocol, now: protocol.ask("b", "a", "message", now, 10),
    "b asks c": lambda protocol, now: protocol.ask("b", "c", "message", now, 10),
    "c asks a": lambda protocol, now: protocol.ask("c", "a", "message", now, 10),
    "c asks c": lambda protocol, now: protocol.ask("c", "c", "message", now, 10),
    "b answers r1": lambda protocol, now: protocol.answer("r1", "b", "yes", now),
    "a answers r1": lambda protocol, now: protocol.answer("r1", "a", "yes", now),
    "c refuses r2": lambda protocol, now: protocol.answer("r2", "c", "no", now, refuse=True),
    "a answers r2": lambda protocol, now: protocol.answer("r2", "a", "yes", now),
    "time passes": lambda protocol, now: protocol.expire(now + 5),
    "b leaves": lambda protocol, now: protocol.leave("b"),
}


def check(protocol, ended):
    """What must hold after every operation."""
    here = dict.fromkeys("abc", IDLE)
    for agent, before, after, _ in protocol.log:
        assert before == here[agent] and after in TRANSITIONS[before]
        here[agent] = after
    open_requests = [request for request in protocol.requests.values() if not request.outcome]
    asks = {request.sender: request.to for request in open_requests}
    assert len(asks) == len(open_requests), "an agent waits for two things"
    for agent in "abc":
        owes = agent in asks.values()
        assert protocol.state(agent) == here[agent] == (WAITING if agent in asks else RESPONDING if owes else IDLE)
        seen, at = set(), agent
        while at in asks:
            assert at not in seen, "they wait in a circle"
            seen.add(at)
            at = asks[at]
    for request in protocol.requests.values():
        assert request.outcome in ENDS | {""}
        assert ended.setdefault(request.id, request.outcome) == request.outcome, "it ended twice"
        if not request.outcome:
            del ended[request.id]


def test_in_all_short_orders_of_events_nobody_waits_in_a_circle_and_nothing_ends_twice():
    outcomes, moves = set(), set()
    for names in itertools.product(OPERATIONS, repeat=4):
        protocol, now, ended = Protocol(), 0, {}
        for name in names:
            now += 6 if name == "time passes" else 0
            try:
                OPERATIONS[name](protocol, now)
            except ProtocolError as error:
                assert str(error)
            check(protocol, ended)
        outcomes |= {request.outcome for request in protocol.requests.values()}
        moves |= {(before, after) for _, before, after, _ in protocol.log}
    assert outcomes == ENDS | {""}
    assert moves == {(before, after) for before, allowed in TRANSITIONS.items() for after in allowed}


def test_a_question_and_its_answer():
    protocol = Protocol()
    request = protocol.ask("ann", "bob", "message", now=100, seconds=10)
    assert (protocol.state("ann"), protocol.state("bob")) == (WAITING, RESPONDING)
    assert protocol.answer(request.id, "bob", "42", now=110) is request
    assert (request.outcome, request.answer) == ("answered", "42")
    assert (protocol.state("ann"), protocol.state("bob")) == (IDLE, IDLE)


def test_every_transition_is_reported():
    seen = []
    protocol = Protocol(report=lambda *transition: seen.append(transition))
    protocol.ask("ann", "bob", "message", 0, 10)
    assert seen == protocol.log == [("ann", IDLE, REQUESTING, "asks bob"), ("ann", REQUESTING, WAITING, "r1 is sent"),
                                    ("bob", IDLE, RESPONDING, "r1 from ann")]


@pytest.mark.parametrize("before, after", [(before, after) for before in AgentState for after in AgentState
                                           if after not in TRANSITIONS[before]])
def test_an_illegal_transition_is_refused_with_the_state_and_what_is_allowed(before, after):
    protocol = Protocol()
    protocol.states["ann"] = before
    with pytest.raises(ProtocolError) as refused:
        protocol.move("ann", after, "")
    assert f"ann is {before}" in str(refused.value)
    assert all(allowed in str(refused.value) for allowed in TRANSITIONS[before])
    assert protocol.state("ann") == before and protocol.log == []


def test_who_waits_cannot_ask_another():
    protocol = Protocol()
    protocol.ask("ann", "bob", "message", 0, 10)
    with pytest.raises(ProtocolError, match="ann is waiting for r1 from bob and cannot be requesting"):
        protocol.ask("ann", "cid", "message", 0, 10)
    assert len(protocol.requests) == 1


@pytest.mark.parametrize("chain", ["a", "ab", "abc", "abcdefgh"])
def test_a_circle_of_any_length_is_refused_at_once_and_named(chain):
    protocol = Protocol()
    for sender, to in itertools.pairwise(chain):
        protocol.ask(sender, to, "message", 0, 10)
    before = dict(protocol.states)
    with pytest.raises(ProtocolError, match=" -> ".join([chain[-1], *chain])):
        protocol.ask(chain[-1], chain[0], "message", 0, 10)
    assert {name: state for name, state in protocol.states.items() if state != IDLE} == before
    for number in reversed(range(1, len(chain))):  # and it can still be answered, from the end
        protocol.answer(f"r{number}", chain[number], "yes", 0)
    assert set(protocol.states.values()) == {IDLE}


def test_who_owes_an_answer_may_ask_a_third_and_owes_it_still():
    protocol = Protocol()
    protocol.ask("ann", "bob", "message", 0, 10)
    protocol.ask("bob", "cid", "message", 0, 10)
    assert protocol.state("bob") == WAITING
    protocol.answer("r2", "cid", "yes", 1)
    assert protocol.state("bob") == RESPONDING


@pytest.mark.parametrize("end, outcome", [
    (lambda protocol: protocol.answer("r1", "bob", "x", 1), "answered"),
    (lambda protocol: protocol.answer("r1", "bob", "x", 1, refuse=True), "refused"),
    (lambda protocol: protocol.expire(11), "timed out"),
    (lambda protocol: protocol.leave("ann"), "cancelled"),
    (lambda protocol: protocol.leave("bob"), "cancelled"),
])
def test_a_request_ends_once_and_a_second_answer_is_recognised(end, outcome):
    protocol = Protocol()
    request = protocol.ask("ann", "bob", "message", 0, 10)
    end(protocol)
    assert request.outcome == outcome and set(protocol.states.values()) == {IDLE}
    with pytest.raises(ProtocolError, match=f"r1 is {outcome} already"):
        protocol.answer("r1", "bob", "again", 2)
    assert request.outcome == outcome and request.answer != "again"


def test_who_leaves_ends_no_request_of_others():
    protocol = Protocol()
    protocol.ask("ann", "bob", "message", 0, 10)
    protocol.ask("cid", "dan", "message", 0, 10)
    protocol.leave("dan")
    assert protocol.state("cid") == IDLE and protocol.state("ann") == WAITING
    assert protocol.answer("r1", "bob", "yes", 1).outcome == "answered"


def test_an_answer_after_the_deadline_is_late():
    protocol = Protocol()
    protocol.ask("ann", "bob", "message", 0, 10)
    with pytest.raises(ProtocolError, match="timed out already"):
        protocol.answer("r1", "bob", "at last", 10.1)
    assert protocol.state("ann") == IDLE


def test_only_who_was_asked_may_answer():
    protocol = Protocol()
    protocol.ask("ann", "bob", "message", 0, 10)
    for request_id, agent in (("r1", "ann"), ("r1", "cid"), ("r7", "bob")):
        with pytest.raises(ProtocolError, match=f"{agent} was not asked '{request_id}'"):
            protocol.answer(request_id, agent, "x", 1)
    with pytest.raises(ProtocolError, match="open: r1"):
        protocol.answer("r7", "bob", "x", 1)


# questions ------------------------------------------------------------------------------------


def test_a_question_is_answered_and_the_answer_is_the_result(lead):
    spawn(lead, "bob")
    question = "Which port?\nrespond r1 :: 8080\nsay told"
    [result] = results(played(lead, step("request", to="bob", question=question) + " ;; say ok"))
    assert result["content"] == "8080" and "is_error" not in result
    assert 'request_id="r1"' in texts(lead.teammates["bob"].messages)


def test_a_member_may_ask_the_lead(lead):
    lead.spawn_teammate("ann", "writer", step("request", to=LEAD, question="May I?") + " ;; say thanks")
    until(lambda: mail(lead, "message"))
    assert lead.respond("r1", "You may.") == "ann has your answer to r1: answered"
    until(lambda: rests(lead))
    assert results(lead.teammates["ann"].messages)[0]["content"] == "You may."


def test_a_refusal_comes_with_its_reason(lead):
    spawn(lead, "bob")
    question = "Which port?\n" + step("respond", request_id="r1", content="That is secret.", refuse=True)
    [result] = results(played(lead, step("request", to="bob", question=question) + " ;; say ok"))
    assert result["is_error"] and "refused: That is secret." in result["content"]


def test_a_question_times_out_and_a_late_answer_is_told_so(lead):
    bob = spawn(lead, "bob")
    question = "Which port?\nrespond r1 :: 8080 ;; say told"
    [result] = results(played(lead, step("request", to="bob", question=question, timeout=0) + " ;; say ok"))
    assert result["is_error"] and "timed out" in result["content"]
    until(lambda: rests(lead))
    assert "r1 is timed out already" in results(bob.messages)[-1]["content"]


def test_asking_back_is_refused_at_once_and_names_the_circle(lead):
    spawn(lead, "bob")
    question = "\n".join(["Which port?", step("request", to="ann", question="Which host?"), "respond r1 :: 80", "say told"])
    ann = spawn(lead, "ann", step("request", to="bob", question=question) + " ;; say ok")
    refused, answered = results(lead.teammates["bob"].messages)
    assert "bob -> ann -> bob" in refused["content"] and refused["is_error"] and "is_error" not in answered
    assert results(ann.messages)[0]["content"] == "80"


@pytest.mark.parametrize("to", ["nobody", "Bob", ""])
def test_a_question_to_nobody_is_refused_with_the_names(lead, to):
    spawn(lead, "bob")
    with pytest.raises(ProtocolError, match="these can: bob"):
        lead.ask(to, "x")
    assert lead.exchange.protocol.requests == {}


def test_who_waits_for_a_member_that_goes_is_told(lead):
    bob = spawn(lead, "bob")
    threading.Timer(0.1, bob.leave).start()
    with pytest.raises(core.ToolError, match="cancelled: bob has left"):
        lead.ask("bob", "Which port?\nbash sleep 0.3")


@needs_posix
def test_ctrl_c_while_waiting_cancels_the_request_and_leaves_the_conversation_valid(lead):
    spawn(lead, "bob")
    core.listeners.append(lambda event: event["kind"] == "tool_call" and event["name"] == "request"
                          and threading.Timer(0.1, os.kill, (os.getpid(), signal.SIGINT)).start())
    messages = [{"role": "user", "content": step("request", to="bob", question=f"x\nbash sleep {SLEEPER}") + " ;; say ok"}]
    with pytest.raises(KeyboardInterrupt):
        lead.run(messages)
    assert lead.exchange.protocol.requests["r1"].outcome == "cancelled"
    assert lead.exchange.protocol.state(LEAD) == IDLE and accepted(lead, messages)


def test_transitions_are_events(lead, events):
    spawn(lead, "bob")
    with pytest.raises(core.ToolError):
        lead.ask("bob", "x", timeout=0)
    shown = [(event["member"], event["before"], event["after"]) for event in events if event["kind"] == "transition"]
    assert shown == [(LEAD, "idle", "requesting"), (LEAD, "requesting", "waiting"), ("bob", "idle", "responding"),
                     (LEAD, "waiting", "idle"), ("bob", "responding", "idle")]
    assert show_protocol(lead, [], "bob").splitlines() == ["bob           idle -> responding r1 from lead",
                                                           "bob     responding -> idle       r1 timed out"]


def test_no_request_has_the_id_of_one_that_an_earlier_run_left_in_the_inbox(tmp_path):
    Mailbox(tmp_path / "team/inbox").send("ann", LEAD, "an old plan", PLAN, request_id="r7")
    assert Exchange(Team(tmp_path / "team")).protocol.ask("ann", LEAD, PLAN, 0, 1).id == "r8"


# plans ----------------------------------------------------------------------------------------


CHANGES = {"bash": {"command": "touch made"}, "write": {"path": "made", "content": "x"},
           "edit": {"path": "a.txt", "old_text": "old", "new_text": "new"}, "revert": {"path": "a.txt"}}


def test_the_gate_denies_every_tool_that_changes_something_and_no_other(workspace):
    gate = PlanGate(core.Permissions(mode="yes"))
    denied = [name for name, tool in core.extended_tools(workspace).items() if gate.decide(tool, {}).behavior == "deny"]
    assert denied == list(CHANGES)
    unknown = core.Tool("invented_later", "", {"type": "object"}, print)
    assert gate.decide(unknown, {}).behavior == "deny"
    gate.approved = True
    assert gate.decide(unknown, {}).behavior == "allow"


def test_behind_the_gate_the_rules_of_the_lead_hold():
    class Strict(core.Permissions):
        def decide(self, tool, given):
            return core.Decision("deny", "strict") if tool.name == "write" else super().decide(tool, given)

    inner = Strict(deny=["bash(rm *)", "read(.env*)"], asker=lambda *question: "always")
    gate = PlanGate(inner)
    reader = core.Tool("read", "", {"type": "object", "properties": {"path": {"type": "string"}}}, print, read_only=True)
    assert gate.decide(reader, {"path": ".env"}).why == "the rule read(.env*) forbids it"
    gate.approved = True
    tool = core.Tool("write", "", {"type": "object"}, print)
    bash = core.Tool("bash", "", {"type": "object", "properties": {"command": {"type": "string"}}}, print)
    assert gate.decide(tool, {}).why == "strict" and gate.decide(bash, {"command": "rm x"}).behavior == "deny"
    gate.approve(bash, {"command": "ls a"})
    assert inner.allow == ["bash(ls *)"]


@pytest.mark.parametrize("name", CHANGES)
def test_without_an_approved_plan_nothing_changes(lead, name):
    (lead.workspace.root / "a.txt").write_text("old")
    ann = spawn(lead, "ann", f"read a.txt ;; {step(name, **CHANGES[name])} ;; say ok")
    read, change = results(ann.messages)
    assert "is_error" not in read and change["is_error"] and "submit_plan" in change["content"]
    assert [path.name for path in lead.workspace.root.iterdir() if path.name != ".agent"] == ["a.txt"]
    assert (lead.workspace.root / "a.txt").read_text() == "old"


def test_rejection_returns_the_feedback_and_keeps_the_gate_shut_and_approval_wakes_and_opens_it(lead, stand_in):
    """B076"""
    ann = spawn(lead, "ann", "submit_plan first ;; say I wait.")
    [request] = mail(lead, PLAN)
    assert (request["content"], request["request_id"]) == ("first", "r1")
    assert mail(lead, "message") == [], "who has submitted a plan reports nothing else"
    lead.review_plan("r1", False, "Name the file.\nwrite a.txt :: 1 ;; submit_plan second ;; say I wait.")
    until(lambda: rests(lead) and len(mail(lead, PLAN)) == 2)
    assert "rejected" in texts(ann.messages) and "Name the file." in texts(ann.messages)
    assert results(ann.messages)[1]["is_error"] and not (lead.workspace.root / "a.txt").exists()
    requests = len(stand_in.requests)
    lead.review_plan("r2", True, "write a.txt :: 2 ;; say done")
    until(lambda: (lead.workspace.root / "a.txt").exists() and rests(lead))
    assert len(stand_in.requests) > requests and "Your plan is approved" in texts(ann.messages)
    assert contents(mail(lead, "message")) == ["done"]


def test_approval_without_a_word_wakes_too(lead, stand_in):
    """B076: the next request says something."""
    ann = spawn(lead, "ann", "submit_plan first ;; say I wait.")
    lead.review_plan("r1", True)
    until(lambda: "Your plan is approved: go on." in texts(ann.messages) and rests(lead))
    assert accepted(ann, ann.messages)


def test_a_new_plan_shuts_the_gate_again(lead):
    ann = spawn(lead, "ann", "submit_plan first ;; say I wait.")
    lead.review_plan("r1", True, "submit_plan second ;; write a.txt :: x ;; say I wait.")
    until(lambda: len(mail(lead, PLAN)) == 2 and rests(lead))
    assert results(ann.messages)[-1]["is_error"] and not (lead.workspace.root / "a.txt").exists()


def test_who_waits_for_a_review_asks_nothing_else(lead):
    spawn(lead, "bob")
    ann = spawn(lead, "ann", "submit_plan first ;; submit_plan second ;; " + step("request", to="bob", question="x"))
    assert [result.get("is_error") for result in results(ann.messages)] == [None, True, True]
    assert "ann is waiting for r1 from lead" in results(ann.messages)[-1]["content"]


@pytest.mark.parametrize("act, words", [
    (lambda lead: lead.review_plan("r1", False), "a rejection needs feedback"),
    (lambda lead: lead.review_plan("r9", True), "was not asked 'r9'; open: r1"),
    (lambda lead: lead.respond("r1", "yes"), "use review_plan"),
    (lambda lead: lead.ask("ann", "x"), "lead -> ann -> lead"),
])
def test_a_wrong_review_says_what_is_right_and_changes_nothing(lead, act, words):
    ann = spawn(lead, "ann", "submit_plan first ;; say I wait.")
    with pytest.raises(core.ToolError, match=words):
        act(lead)
    assert lead.exchange.protocol.awaits("ann").id == "r1" and not ann.gate.approved


def test_a_plan_that_nobody_reviews_wakes_the_member_at_its_deadline(lead):
    ann = spawn(lead, "ann", "submit_plan first ;; say I wait.")
    lead.exchange.protocol.requests["r1"].deadline = 0
    until(lambda: "Nobody has reviewed r1 in time" in texts(ann.messages))
    with pytest.raises(ProtocolError, match="timed out already"):
        lead.review_plan("r1", True)


# shutdown -----------------------------------------------------------------------------------------


def test_a_member_that_agrees_finishes_its_turn_and_is_stopped_for_good(lead):
    """B073"""
    for name in ("ann", "bob"):
        spawn(lead, name)
    lead.shutdown_seconds = 10
    told = [lead.shutdown_teammate("ann", "respond r1 :: Bye. ;; glob * ;; say My last words."),
            lead.shutdown_teammate("bob", "respond r2 :: Bye.")]
    assert all("has stopped; the request was answered: Bye." in text for text in told)
    assert "My last words." in contents(lead.team.mailbox.receive(LEAD))
    assert statuses(lead) == {"ann": "stopped", "bob": "stopped"}
    until(lambda: not any(mate.thread.is_alive() for mate in lead.teammates.values()))
    again = Quick(lead.workspace, permissions=core.Permissions(mode="yes"))  # the program starts again
    assert again.team.living() == [] and again.list_teammates().count("stopped") == 2
    before = len(lead.team.mailbox.receive(LEAD))
    spawn(again, "ann", "say I am new.")
    assert contents(lead.team.mailbox.receive(LEAD))[before:] == ["I am new."]
    again.dismiss()


def test_a_member_may_refuse_with_a_reason_and_goes_on(lead):
    ann = spawn(lead, "ann")
    lead.shutdown_seconds = 10
    told = lead.shutdown_teammate("ann", step("respond", request_id="r1", content="A test is red.", refuse=True))
    assert told == "ann refuses to stop: A test is red." and ann.state != "stopped"
    lead.send_message("ann", "say Still here.")
    until(lambda: "Still here." in contents(lead.team.mailbox.receive(LEAD)))


def test_a_hung_member_is_stopped_at_the_deadline_and_its_name_is_free(lead):
    """B072"""
    lead.spawn_teammate("ann", "writer", "submit_plan x ;; say I wait.")
    until(lambda: mail(lead, PLAN) and rests(lead))
    lead.review_plan("r1", True, "bash sleep 1.5 ;; write late.txt :: x")
    mate = lead.teammates["ann"]
    until(lambda: "sleep" in json.dumps([message for message in mate.messages if message["role"] == "assistant"]))
    told = lead.shutdown_teammate("ann")
    assert mate.thread.is_alive() and "in the middle of its work" in told and "timed out" in told
    assert statuses(lead) == {"ann": "stopped"}
    other = spawn(lead, "ann", "say I am another.")
    until(lambda: not mate.thread.is_alive())
    assert other.state == "idle" and lead.exchange.present == [LEAD, "ann"]
    assert not (lead.workspace.root / "late.txt").exists() and statuses(lead) == {"ann": "idle"}


def test_shutting_down_one_that_waits_for_the_lead_says_what_to_answer_first(lead):
    spawn(lead, "ann", "submit_plan first ;; say I wait.")
    with pytest.raises(ProtocolError, match="lead -> ann -> lead .*First answer what lead was asked: r1"):
        lead.shutdown_teammate("ann")
    lead.review_plan("r1", False, "respond r2 :: Bye.")  # not needed any more
    until(lambda: rests(lead))
    lead.shutdown_seconds = 10
    assert "has stopped" in lead.shutdown_teammate("ann", "respond r2 :: Bye.")


def test_nobody_is_shut_down_who_is_not_there(lead):
    with pytest.raises(ProtocolError, match="these can: nobody yet"):
        lead.shutdown_teammate("ann")


# the whole ------------------------------------------------------------------------------------------


def test_who_has_which_tools(lead):
    ann = spawn(lead, "ann")
    assert list(ann.tools) == [*core.BASE_TOOLS, "send_message", "read_inbox", "request", "respond", "submit_plan"]
    assert {"request", "respond", "review_plan", "shutdown_teammate", "spawn_teammate"} <= lead.tools.keys()
    assert "submit_plan" not in lead.tools and isinstance(ann, PlanningTeammate)
    fields = {name: list(lead.tools[name].input_schema["properties"]) for name in ("request", "review_plan", "respond")}
    assert fields == {"request": ["to", "question", "timeout"], "review_plan": ["request_id", "approve", "feedback"],
                      "respond": ["request_id", "content", "refuse"]}


def test_the_demo_keeps_the_old_line_and_logs_the_states(workspace, stand_in):
    agent, messages = Chairing(workspace, permissions=core.Permissions(mode="yes")), []
    shown = []
    for part in DEMO[1:]:
        for name, content in part.get("files", {}).items():
            (workspace.root / name).write_text(content)
        messages.append({"role": "user", "content": part["script"]})
        agent.run(messages)
        shown.append(part["after"](agent, messages))
    assert (workspace.root / "notes.txt").read_text() == "old\nnew\n"
    assert "refused: bob -> ann -> bob" in shown[0] and "r2 refused" in shown[1] and "r4 answered" in shown[1]
