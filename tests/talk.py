"""What several tests share: a conversation and what is asked of it, waiting, processes, the tracer that strikes at every line."""

import contextlib
import io
import os
import subprocess
import sys
import time

import pytest

import core

SLEEPER = f"71.{os.getpid():07d}"  # seconds; a `sleep` by which a test finds its own processes, whoever tests beside us
needs_posix = pytest.mark.skipif(os.name == "nt", reason="needs POSIX signals, processes or a terminal")


def processes():
    """The command lines of all that runs."""
    return subprocess.run(["ps", "-A", "-o", "args="], capture_output=True, text=True, check=True).stdout


def until(condition, seconds=20):
    """Waits until a condition holds, and returns what it gave; fails when it does not."""
    deadline = time.monotonic() + seconds
    while not (found := condition()):
        assert time.monotonic() < deadline, "it did not happen"
        time.sleep(0.005)
    return found


def prompt(text):
    """A conversation that begins with these words."""
    return [{"role": "user", "content": text}]


def played(agent, script, messages=None):
    """Runs an agent on a script; returns the conversation, a new one or the one that goes on."""
    messages = [] if messages is None else messages
    agent.add(messages, *prompt(script))
    agent.run(messages)
    return messages


def results(messages):
    """The blocks of results, in order."""
    return [block for message in messages if message["role"] == "user"
            for block in core.as_blocks(message["content"]) if block["type"] == "tool_result"]


def outputs(messages):
    """What came of each call, as text."""
    return [block["content"] for block in results(messages)]


def texts(messages):
    """What was said to a model, as one text."""
    return "\n".join(core.text_of(message["content"]) for message in messages if message["role"] == "user")


def accepted(agent, messages):
    """Sends the conversation with one more prompt to the strict stand-in; a broken rule raises."""
    request = agent.request([*messages, {"role": "user", "content": "say still valid"}])
    return core.plain_reply(core.client().messages.create(**request))["content"] != []


def task(task_id, *depends_on, **fields):
    """A task as it lies on disk."""
    return {"id": task_id, "key": "", "description": f"do {task_id}", "status": "pending", "priority": "medium",
            "depends_on": list(depends_on), "owner": "", "result": "", "created": "", "updated": "", **fields}


def graph_of(*tasks):
    return {one["id"]: one for one in tasks}


class Tty(io.StringIO):
    """A file that says it is a terminal, and keeps what is sent to it."""

    def isatty(self):
        return True

    def reconfigure(self, **options):
        """What `main` asks of standard output."""

    def taken(self):
        """What was sent since the last look."""
        sent = self.getvalue()
        self.seek(self.truncate(0))
        return sent


@contextlib.contextmanager
def interrupted_at(line, file):
    """Raises KeyboardInterrupt at the `line`-th line executed in a file, counted from 1; yields what tells
    whether the body was completed before that: `with interrupted_at(3, "x.py") as whole: ...; whole.append(1)`.
    """
    left, whole = line, []

    def strike(frame, event, argument):
        nonlocal left
        if not frame.f_code.co_filename.endswith(file):
            return None
        left -= event == "line"
        if left == 0 and event == "line":
            sys.settrace(None)
            raise KeyboardInterrupt
        return strike

    sys.settrace(strike)
    try:
        yield whole
    except KeyboardInterrupt:
        pass
    finally:
        sys.settrace(None)
