"""Every session's demonstration, played as a real process by the stand-in."""

import json
import os
import signal

import pytest

from program import ROOT, SESSIONS, Program
from talk import needs_posix, until


def lines(path):
    return [json.loads(line) for line in path.read_text(encoding="utf-8").splitlines()]


@pytest.mark.parametrize("session", SESSIONS)
def test_the_demo_plays_explains_itself_and_leaves_nothing(demos, session):
    code, output, folder = demos[session]
    demo = __import__(session).DEMO
    assert code == 0 and "Traceback" not in output, output
    assert all(step["note"] in output for step in demo)
    assert list((folder / "here").iterdir()) == []


@pytest.mark.parametrize("session", SESSIONS)
def test_the_demo_breaks_no_rule_of_the_api_and_calls_tools(demos, session):
    _, _, folder = demos[session]
    meant_to_fail = sum(step.get("fails", False) for step in __import__(session).DEMO)
    refused = [request["error"] for request in lines(folder / "requests.jsonl") if request["error"]]
    assert all("prompt is too long" in error for error in refused) and len(refused) <= meant_to_fail
    events = lines(folder / "trace.jsonl")
    assert len([event for event in events if event["kind"] == "error"]) == meant_to_fail
    assert {"user", "request", "reply", "tool_call", "tool_result", "stop"} <= {event["kind"] for event in events}
    words_not_played = [event for event in events if event["kind"] == "reply"
                        and "I could not play" in json.dumps(event["content"])]
    assert not words_not_played


@needs_posix
def test_an_interrupted_demo_ends_what_it_started_and_leaves_nothing(tmp_path):
    """I9: workers and the commands of their lead end before the folder goes, and write nothing into it afterwards."""
    (tmp_path / "temporary").mkdir()
    environment = {**os.environ, "TMPDIR": str(tmp_path / "temporary")}
    trace = tmp_path / "trace.jsonl"
    playing = Program(ROOT / "s11_autonomous.py", "--demo", "--trace", trace, folder=tmp_path, environment=environment)
    until(lambda: trace.exists() and '"name": "wait_for_tasks"' in trace.read_text(encoding="utf-8"))
    assert any(tmp_path.glob("temporary/*/.agent"))
    playing.send_signal(signal.SIGINT)
    assert playing.ended().code == 130 and not list(tmp_path.glob("temporary/*"))
