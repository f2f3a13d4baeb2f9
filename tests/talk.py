"""What tests of several sessions ask of a conversation, how they wait, and the tracer that strikes at every line."""

import contextlib
import sys
import time

import core


def until(condition, seconds=20):
    """Waits until a condition holds, and returns what it gave; fails when it does not."""
    deadline = time.monotonic() + seconds
    while not (found := condition()):
        assert time.monotonic() < deadline, "it did not happen"
        time.sleep(0.005)
    return found


def results(messages):
    return [block for message in messages if message["role"] == "user"
            for block in core.as_blocks(message["content"]) if block["type"] == "tool_result"]


def accepted(agent, messages):
    """Sends the conversation with one more prompt to the strict stand-in; a broken rule raises."""
    request = agent.request([*messages, {"role": "user", "content": "say still valid"}])
    return core.plain_reply(core.client().messages.create(**request))["content"] != []


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
