"""Every session's demonstration, played as a real process by the stand-in."""

import json
import os
import subprocess
import sys
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parent.parent
SESSIONS = sorted(ROOT.glob("s[0-9][0-9]_*.py"))
TOGETHER = 2  # demonstrations played at once


@pytest.fixture(scope="module")
def played(tmp_path_factory):
    """Plays all demonstrations, some at a time; returns {session: (process, output, folder)}."""
    done, running = {}, []
    for script in [*SESSIONS, *[None] * TOGETHER]:
        if script is None or len(running) == TOGETHER:
            name, process, folder = running.pop(0)
            done[name] = (process, process.communicate(timeout=60)[0], folder)
        if script:
            folder = tmp_path_factory.mktemp(script.stem)
            (folder / "here").mkdir()
            environment = {**os.environ, "OFFLINE_LOG": str(folder / "requests.jsonl"), "HOME": str(folder)}
            process = subprocess.Popen(
                [sys.executable, script, "--demo", "--trace", folder / "trace.jsonl"], cwd=folder / "here", text=True,
                encoding="utf-8", stdout=subprocess.PIPE, stderr=subprocess.STDOUT, env=environment)
            running.append((script.stem, process, folder))
    return done


def lines(path):
    return [json.loads(line) for line in path.read_text(encoding="utf-8").splitlines()]


@pytest.mark.parametrize("session", [script.stem for script in SESSIONS])
def test_the_demo_plays_explains_itself_and_leaves_nothing(played, session):
    process, output, folder = played[session]
    demo = __import__(session).DEMO
    assert process.returncode == 0 and "Traceback" not in output, output
    assert all(step["note"] in output for step in demo)
    assert list((folder / "here").iterdir()) == []


@pytest.mark.parametrize("session", [script.stem for script in SESSIONS])
def test_the_demo_breaks_no_rule_of_the_api_and_calls_tools(played, session):
    _, _, folder = played[session]
    meant_to_fail = sum(step.get("fails", False) for step in __import__(session).DEMO)
    refused = [request["error"] for request in lines(folder / "requests.jsonl") if request["error"]]
    assert all("prompt is too long" in error for error in refused) and len(refused) <= meant_to_fail
    events = lines(folder / "trace.jsonl")
    assert len([event for event in events if event["kind"] == "error"]) == meant_to_fail
    assert {"user", "request", "reply", "tool_call", "tool_result", "stop"} <= {event["kind"] for event in events}
    words_not_played = [event for event in events if event["kind"] == "reply"
                        and "I could not play" in json.dumps(event["content"])]
    assert not words_not_played
