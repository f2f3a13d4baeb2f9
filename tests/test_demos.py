"""Every session's demonstration, played as a real process by the stand-in."""

import json
import os
import subprocess
import sys
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parent.parent
SESSIONS = sorted(ROOT.glob("s[0-9][0-9]_*.py"))
PLAYER = Path(__file__).with_name("player.py")


@pytest.fixture(scope="module")
def played(tmp_path_factory):
    """Plays all demonstrations; returns {session: (exit code, output, folder)}."""
    folders = {script.stem: tmp_path_factory.mktemp(script.stem) for script in SESSIONS}
    jobs = []
    for script in SESSIONS:
        folder = folders[script.stem]
        (folder / "here").mkdir()
        environment = {"OFFLINE_LOG": str(folder / "requests.jsonl"), "HOME": str(folder)}
        jobs.append({"script": str(script), "arguments": ["--demo", "--trace", str(folder / "trace.jsonl")],
                     "folder": str(folder / "here"), "environment": environment, "output": str(folder / "output")})
    if not hasattr(os, "fork"):
        codes = {job["script"]: play(job) for job in jobs}
    else:
        done = subprocess.run([sys.executable, PLAYER], input=json.dumps(jobs), capture_output=True, text=True, timeout=120)
        codes = json.loads(done.stdout)
    return {script.stem: (codes[str(script)], (folders[script.stem] / "output").read_text("utf-8"), folders[script.stem])
            for script in SESSIONS}


def play(job):
    """One demonstration as a process of its own, where there is no fork."""
    with open(job["output"], "wb") as output:
        return subprocess.run([sys.executable, job["script"], *job["arguments"]], cwd=job["folder"], stdout=output,
                              stderr=subprocess.STDOUT, env={**os.environ, **job["environment"]}, timeout=60).returncode


def lines(path):
    return [json.loads(line) for line in path.read_text(encoding="utf-8").splitlines()]


@pytest.mark.parametrize("session", [script.stem for script in SESSIONS])
def test_the_demo_plays_explains_itself_and_leaves_nothing(played, session):
    code, output, folder = played[session]
    demo = __import__(session).DEMO
    assert code == 0 and "Traceback" not in output, output
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
