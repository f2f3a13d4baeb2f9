"""docs/play.py · runs the commands that the lessons show, as they are, and measures them

A run is the real program on a terminal of its own, against the stand-in, forked from a process that
has imported the SDK already, because that import takes longer than the run. What would differ from
run to run is given to it from outside: the width, the clock of `datetime`, random ids, the names of
temporary folders, an environment without keys. Its folder holds a copy of the repository's files. It needs
/tmp and fork: Linux.
"""

import atexit
import contextlib
import datetime
import fcntl
import importlib
import itertools
import json
import multiprocessing
import os
import pty
import random
import runpy
import shlex
import shutil
import signal
import sys
import tempfile
import traceback
import tty
import zlib
from collections import Counter
from collections.abc import Callable
from pathlib import Path

ROOT = Path(__file__).resolve().parent.parent
COLUMNS = 100  # a code host shows about as many without scrolling
RUN_SECONDS = 60  # after which a run is given up
AT_ONCE = 2  # runs
EMPTY = ("ANTHROPIC_API_KEY", "ANTHROPIC_AUTH_TOKEN", "ANTHROPIC_BASE_URL", "MODEL_ID", "ANTHROPIC_MODEL",
         "OFFLINE_FAULTS", "OFFLINE_LOG")  # set to nothing: then .env does not set them either


class Clock(datetime.datetime):
    """A clock that begins at the same instant in each run and moves a millisecond with each look."""

    looks = itertools.count()

    @classmethod
    def now(cls, tz=None):
        begin = datetime.datetime(2026, 1, 5, 9, 0, tzinfo=datetime.timezone.utc)
        return (begin + datetime.timedelta(milliseconds=next(cls.looks))).astimezone(tz)


def play_all(commands: list[str]) -> dict[str, dict]:
    """Runs every command once, two at a time, each in a process of its own; what `play` gives, by command."""
    if not commands:
        return {}
    import anthropic  # noqa: F401  what takes long to import is imported before the first fork
    import httpx2  # noqa: F401
    import rich.markdown  # noqa: F401
    import yaml  # noqa: F401

    datetime.datetime = Clock  # for the modules below, and the real one for all that is imported by now
    for path in sorted(ROOT.glob("*.py")):
        with contextlib.suppress(Exception):  # who needs it will meet the error again
            importlib.import_module(path.stem)
    with open(f"/tmp/lessons-{os.getuid()}.lock", "w") as lock:
        fcntl.flock(lock, fcntl.LOCK_EX)  # the folders have fixed names, so only one build at a time
        with multiprocessing.get_context("fork").Pool(AT_ONCE) as pool:
            return dict(zip(commands, pool.map(play, commands, chunksize=1)))


def play(command: str) -> dict:
    """Runs a command on a terminal of its own; returns its exit code, its output by step, and the figures."""
    mark = f"{zlib.crc32(command.encode()):08x}"
    folder, demo, report = Path("/tmp/lesson-" + mark), Path("/tmp/agent-demo-" + mark), Path(f"/tmp/lesson-{mark}.json")
    for old in (folder, demo):
        shutil.rmtree(old, ignore_errors=True)
    shutil.copytree(ROOT / "skills", folder / "skills", ignore=shutil.ignore_patterns("__pycache__"))
    for path in [*ROOT.glob("*.py"), *ROOT.glob("*.md")]:
        shutil.copy(path, folder)
    pid, screen = pty.fork()
    if not pid:
        become(command, folder, mark, report)
    chunks = []
    with contextlib.suppress(OSError):  # is how Linux says that the other end was closed
        while chunk := os.read(screen, 1 << 16):
            chunks.append(chunk)
    os.close(screen)
    code = os.waitstatus_to_exitcode(os.waitpid(pid, 0)[1])
    shown = b"".join(chunks).decode("utf-8", "replace")
    steps = json.loads(report.read_text()) if report.exists() else []
    report.unlink(missing_ok=True)
    shutil.rmtree(folder)
    parts = ["\n".join(map(str.rstrip, part.split("\n"))) for part in shown.split("\f")]
    return {"exit": code, "shown": parts, "steps": steps}


def become(command: str, folder: Path, mark: str, report: Path) -> None:
    """In the forked child: runs the command as if it had been typed in the folder, and ends the process."""
    signal.alarm(RUN_SECONDS)
    atexit._clear()  # what the parent wants done at its end is not ours to do
    code, steps = 1, list
    try:
        sys.argv, steps = prepare(command, folder, mark), observe()
        if sys.argv[0] == "-c":
            exec(sys.argv[1], {"__name__": "__main__"})
        else:
            runpy.run_path(str(ROOT / sys.argv[0]), run_name="__main__")
        code = 0
    except SystemExit as stop:
        code = stop.code or 0
    except BaseException:
        traceback.print_exc()
    finally:
        report.write_text(json.dumps(steps()))
        atexit._run_exitfuncs()
        sys.stdout.flush()
        os._exit(code)


def prepare(command: str, folder: Path, mark: str) -> list[str]:
    """Gives the process what is the same in each run: streams, environment, folders; returns its arguments."""
    before, _, after = command.rpartition(" | python ")
    typed = shlex.split(before.removeprefix("printf '%s\\n'").removeprefix("echo"))
    reading, writing = os.pipe()
    os.write(writing, "".join(f"{line}\n" for line in typed).encode())
    os.close(writing)
    os.dup2(reading, 0)
    tty.setraw(1)  # a line end stays what it is
    sys.stdin, sys.stdout, sys.stderr = open(0), open(1, "w", buffering=1), open(2, "w", buffering=1)
    words = shlex.split(f"python {after}" if before else command)
    given = dict(word.split("=", 1) for word in words[:words.index("python")])
    os.environ.update({**dict.fromkeys(EMPTY, ""), "HOME": str(folder / "home"), "COLUMNS": str(COLUMNS),
                       "NO_COLOR": "1", "TERM": "xterm", "LC_ALL": "C.UTF-8", "TZ": "UTC", **given})
    os.chdir(folder)
    tempfile.tempdir, tempfile._name_sequence = "/tmp", itertools.repeat(mark)
    random._urandom = os.urandom = random.Random(0).randbytes  # ids
    return words[len(given) + 1:]


def observe() -> Callable[[], list[dict]]:
    """Marks where each step of a demonstration begins, and returns what to ask for its figures at the end."""
    import console
    import core
    import offline

    servers, steps, program, start = [], [], console.Program, offline.start
    build, play_step = program.build, program.play_step

    def begin() -> None:
        steps.append({"first": len(servers[0].requests) if servers else 0, "events": []})
        print(end="\f", flush=True)

    def building(self, *arguments):
        if arguments[1:]:  # the agent of a step: what it says at its birth belongs to that step
            begin()
            steps[-1]["new"] = True
        return build(self, *arguments)

    def playing(self, *arguments):
        if not (steps and steps[-1].pop("new", False)):
            begin()
        return play_step(self, *arguments)

    program.build, program.play_step = building, playing
    offline.start = lambda *given, **named: servers.append(start(*given, **{**named, "record": True})) or servers[-1]
    core.listeners.append(lambda event: steps and steps[-1]["events"].append(event))
    return lambda: measure(steps, servers[0].requests if servers else [])


def measure(steps: list[dict], requests: list[dict]) -> list[dict]:
    """The figures of each step: its first request, and the sums over all of them."""
    ends = [step["first"] for step in steps[1:]] + [len(requests)]
    figures = []
    for step, end in zip(steps, ends):
        sent = [request for request in requests[step["first"]:end] if request["path"] == "/v1/messages"]
        paid = Counter()
        for usage in filter(None, (request["usage"] for request in sent)):
            read, written = usage["cache_read_input_tokens"], usage["cache_creation_input_tokens"]
            paid.update({"in": usage["input_tokens"] + written + read, "cached": read, "out": usage["output_tokens"]})
        body = sent[0]["body"] if sent else {}
        ends_with = [event.get("reason", "error") for event in step["events"] if event["kind"] in ("stop", "error")]
        figures.append({"system": len(body.get("system", "")), "tools": [tool["name"] for tool in body.get("tools", [])],
                        "definitions": len(json.dumps(body.get("tools", []))), "calls": len(sent), **paid,
                        "ends": ends_with[-1] if ends_with else "", "events": Counter(e["kind"] for e in step["events"])})
    return figures
