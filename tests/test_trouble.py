"""When the model cannot be asked: every trouble of the API in every place that asks a model.

One table says how the endpoint answers and what a person reads of it, another drives each place into it:
there is some work already, then comes the trouble, and afterwards somebody goes on. Both are crossed
twice, with the trouble that passes and with the one that lasts. The stand-in is strict, so each
request that it answers proves that the history was valid.
"""

import copy
import io
import json
from types import SimpleNamespace
from typing import NamedTuple

import pytest

import core
import screen
from s01_agent_loop import Agent
from s04_subagent import Spawning
from s06_compact import Compacting
from s09_teams import LEAD, Leading
from s11_autonomous import Working
from talk import results, until

PATIENCE = "250"  # milliseconds; all that an answer that stalls is waited for


class Trouble(NamedTuple):
    """A fault of the stand-in, what a person reads of it, and the next step that is offered."""

    fault: str
    what: str
    advice: str
    may_pass: bool = True

    @property
    def lasting(self) -> str:
        """A fault for each attempt; those before the last are quick, because they say how short the wait is."""
        return f"429*{core.RETRIES},{self.fault}" if self.may_pass else self.fault


TROUBLES = {
    "429 with retry-after": Trouble("429:0.01", "exceed your rate limit. (HTTP 429)", "wait a little and ask again"),
    "529": Trouble("529:0", "Overloaded (HTTP 529)", "ask again later"),
    "500": Trouble("500:0", "Internal server error (HTTP 500)", "ask again later"),
    "502 with an HTML body": Trouble("502:0", "the server answered HTTP 502", "ask again later"),
    "reset before a byte": Trouble("reset", "the connection failed", "check the network and ANTHROPIC_BASE_URL"),
    "reset in the middle of a body": Trouble("cut", "the connection failed", "check the network and ANTHROPIC_BASE_URL"),
    "stalled": Trouble("stall:60", "timed out", "ask again; API_TIMEOUT_MS"),
    "429 with a long wait": Trouble("429:7200", "(HTTP 429)", "wants a wait of 7,200 s; ask again after that", False),
    "401": Trouble("401", "invalid x-api-key (HTTP 401)", "check ANTHROPIC_API_KEY", False),
    "404 model": Trouble("404", "Fault 404", "check the model (--model or MODEL_ID)", False),
    "413": Trouble("413", "the server answered HTTP 413", "/clear starts afresh, /compact (s06) shortens it", False),
    "400 prompt too long": Trouble("400:prompt", "prompt is too long", "/clear starts afresh, /compact", False),
    "400 other": Trouble("400", "Fault 400", "the conversation is kept, /clear starts afresh", False),
}


class Outcome(NamedTuple):
    """What became of it, when the trouble was over or had been given up, and of the work that followed."""

    failed: bool
    shown: str  # what the user saw until then
    told: str  # what whoever had given the work heard
    kept: bool  # whether what was done before is still there
    goes_on: bool  # whether more work could be done afterwards


# the places: each does some work, meets the faults in its next request, and goes on -----------------

WORK = "say I begin. ++ write note.txt :: kept ;; say Done."


def one_shot(stage, faults) -> Outcome:
    stage.inject("ok", faults)
    done = stage.run_main(Agent, "-p", "bash echo kept ;; say Done.", "--yes", "--output-format", "json")
    reply = json.loads(done.stdout)
    assert (done.code, reply["is_error"]) in ((0, False), (1, True))
    messages, agent = reply["messages"], Agent(stage.workspace)
    agent.add(messages, {"role": "user", "content": "say Still here."})
    return Outcome(done.code == 1, done.stderr, reply["result"], results(messages)[0]["content"] == "kept",
                   agent.run(messages) == "Still here.")


def repl(stage, faults) -> Outcome:
    stage.inject("ok", faults)
    done = stage.run_main(Agent, "--yes", stdin="bash echo kept ;; say Done.\nsay Still here.\n")
    *before, last = done.stdout.splitlines()
    assert done.code == 0
    return Outcome("Done." not in before, done.stderr, done.stderr,
                   results(stage.requests[-1]["body"]["messages"])[0]["content"] == "kept", last == "Still here.")


def subagent(stage, faults) -> Outcome:
    agent = Spawning(stage.workspace, permissions=stage.permissions)
    stage.inject("ok", "ok", faults)
    messages = [{"role": "user", "content": f"spawn_subagent {json.dumps({'prompt': WORK})} ;; say Still here."}]
    after = agent.run(messages)
    [result] = results(messages)
    words = () if result["content"] == "Done." else ("did NOT finish", "1 call", "note.txt", "I begin.")
    return Outcome(result.get("is_error", False), stage.shown(), result["content"],
                   stage.note() and all(word in result["content"] for word in words), after == "Still here.")


def teammate(stage, faults) -> Outcome:
    lead = stage.team(Leading)
    stage.inject("ok", faults)
    lead.spawn_teammate("ann", "writer", WORK)
    lead.has_news(wait=True)
    [mail], shown, mate = lead.team.mailbox.receive(LEAD), stage.shown(), lead.teammates["ann"]
    kept = stage.note() and "is_error" not in results(mate.messages)[0]
    lead.send_message("ann", "say Still here.")
    until(lambda: len(lead.team.mailbox.receive(LEAD)) == 2)
    return Outcome("could not be asked" in mail["content"], shown, mail["content"], kept,
                   "Still here." in lead.team.mailbox.receive(LEAD)[1]["content"])


def worker(stage, faults) -> Outcome:
    lead = stage.team(Working)
    stage.inject("ok", faults)
    lead.graph.create(WORK)
    lead.set_workers(1)
    told, [first] = lead.wait_for_tasks(), lead.graph.load().values()
    until(lambda: lead.teammates["worker-1"].state != "working")
    shown = stage.shown()
    lead.graph.create("say Still here.")
    lead.set_workers(2)  # for the second attempt somebody else must come
    lead.wait_for_tasks()
    tasks = [(task["status"], task["result"]) for task in lead.graph.load().values()]
    return Outcome(first["status"] == "pending", shown, told, stage.note() and tasks[0] == ("done", "Done."),
                   tasks[1] == ("done", "Still here."))


def summary(stage, faults) -> Outcome:
    agent = Compacting(stage.workspace, context_window=20_000)
    messages = [{"role": role, "content": f"say {letter * 6_000}"} for letter in "abcd" for role in ("user", "assistant")]
    before = copy.deepcopy(messages)
    stage.inject(faults)
    failed, shown = not agent.compact(messages), stage.shown()
    kept = messages == before if failed else (agent.folder / "memory.md").exists()
    agent.add(messages, {"role": "user", "content": "say Still here."})
    return Outcome(failed, shown, shown, kept, agent.run(messages) == "Still here.")


PLACES = {"s01 one-shot": (one_shot, ""), "s01 REPL": (repl, ""), "subagent": (subagent, "sub-1"),
          "teammate": (teammate, "ann"), "worker": (worker, "worker-1"), "summary": (summary, "")}


@pytest.fixture
def stage(stand_in, workspace, run_main):
    """What a place needs: a stand-in, a workspace, and a screen that shows what a user would see."""
    seen, leads, permissions = io.StringIO(), [], core.Permissions(mode="yes")
    core.listeners.append(screen.Screen(seen).listen)

    def team(make_lead):
        leads.append(make_lead(workspace, permissions=permissions))
        return leads[-1]

    yield SimpleNamespace(
        inject=stand_in.inject, requests=stand_in.requests, workspace=workspace, permissions=permissions,
        run_main=run_main, team=team, shown=seen.getvalue,
        note=lambda: (workspace.root / "note.txt").read_text() == "kept")
    for lead in leads:
        lead.dismiss()
        assert not any(mate.thread.is_alive() for mate in lead.teammates.values())


def lines_with(words, outcome):
    return [line for line in outcome.shown.splitlines() if words in line]


@pytest.fixture
def trouble(name, monkeypatch):
    """The trouble of that name; a stalled answer is waited for a short time only."""
    if name == "stalled":
        monkeypatch.setenv("API_TIMEOUT_MS", PATIENCE)
    return TROUBLES[name]


@pytest.mark.parametrize("name", TROUBLES)
@pytest.mark.parametrize("place", PLACES)
def test_trouble_that_lasts_is_one_clear_line_and_loses_nothing(place, trouble, stage, stand_in):
    """Invariants I1 and I3, contracts A4, A5 and A9."""
    drive, who = PLACES[place]
    outcome = drive(stage, trouble.lasting)
    assert outcome.failed and outcome.kept and outcome.goes_on
    [line] = [line for line in lines_with(trouble.what, outcome) if "trying again" not in line]
    assert trouble.advice in line and (who in line or place == "subagent") and trouble.what in outcome.told
    again = lines_with("trying again", outcome)
    assert len(again) == core.RETRIES * trouble.may_pass and all(who in line for line in again)
    assert not stand_in.faults  # each attempt has met its own, and there were no more
    assert "Traceback" not in outcome.shown and "<" not in outcome.shown


ANSWERED = [name for name, trouble in TROUBLES.items() if trouble.fault.endswith((":0", ":0.01"))]
UNANSWERED = [name for name, trouble in TROUBLES.items() if trouble.may_pass and name not in ANSWERED]


@pytest.mark.parametrize("place, name", [
    *((place, name) for place in PLACES for name in ANSWERED),
    *(("s01 REPL", name) for name in UNANSWERED)])  # in one place, since nobody says that the wait may be short
def test_trouble_that_passes_is_seen_and_survived(place, trouble, stage, stand_in):
    """Contracts A5 and A9: the SDK would retry in silence, and not at all after a cut body."""
    drive, who = PLACES[place]
    outcome = drive(stage, trouble.fault)
    assert not outcome.failed and outcome.kept and outcome.goes_on and not stand_in.faults
    [line] = lines_with("trying again in", outcome)
    assert trouble.what in line and f"(1 of {core.RETRIES})" in line and who in line
    assert not lines_with("✗", outcome)
