"""Every session's demonstration, played as a real process by the stand-in."""

import json

import pytest

from program import SESSIONS


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
