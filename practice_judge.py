"""practice_judge · says of a learner's file whether it is right, and of the exercises whether they are

`judge` is for one file, `verify` for all exercises. Both ask practice_probe, in a process that ends
in time and takes along what it started: a learner's code may do anything.
"""

import importlib.util
import json
import os
import re
import signal
import subprocess
import sys
import tempfile
from concurrent.futures import ThreadPoolExecutor
from dataclasses import replace
from pathlib import Path

import practice_probe
from practice_carve import ROOT, Exercise, carved
from practice_probe import broken
from practice_table import ASKED

SECONDS = 10  # for one test; the slowest that is used takes less than one, importing the SDK three
PATIENCE = 60  # seconds for one test of `verify`, and for a demonstration: the machine may be busy
OPTIONS = ["-x", "-q", "--tb=native", "-p", "no:cacheprovider",
           "-p", "no:unraisableexception",  # it collects garbage ten times for each job
           "-o", "addopts=",  # those of pyproject.toml start more processes
           "-c", str(ROOT / "pyproject.toml"), f"--rootdir={ROOT}"]
MANY = 4  # jobs: with more it pays to import the SDK first, and to compile tests and sessions once
SHARE = """import gc, os, runpy, sys
gc.disable()
import anthropic, pytest, rich.console, rich.markdown
gc.freeze()  # none of this will ever be garbage
gc.enable()
del sys.argv[0]
sys.path[0] = os.path.dirname(sys.argv[0])
if sys.dont_write_bytecode:
    sys.pycache_prefix, sys.dont_write_bytecode = os.path.join(os.path.dirname(sys.argv[1]), "compiled"), False
runpy.run_path(sys.argv[0], run_name="__main__")
"""
PLAY = """import os, runpy, sys
import anthropic, rich.console, rich.markdown
root, *sessions = sys.argv[1:]
sys.path[0], children = root, []
for session in sessions:
    if len(sessions) > 1 and (child := os.fork()):  # each with its own memory, and the SDK imported once
        children.append(child)
        continue
    sys.argv = [os.path.join(root, session + ".py"), "--demo", "--trace", session]
    runpy.run_path(sys.argv[0], run_name="__main__")
    sys.exit()
sys.exit(max([abs(os.waitstatus_to_exitcode(os.waitpid(child, 0)[1])) for child in children]))
"""


def judge(exercise: Exercise, path: Path) -> dict:
    """The outcome of a learner's file: see practice_check."""
    if exercise.kind == "predict":
        return judge_answer(exercise, path)
    try:
        compile(path.read_text(encoding="utf-8"), str(path), "exec")
    except (SyntaxError, ValueError) as error:  # said at once, without a process
        return {"passed": 0, "failure": {"kind": "syntax", "got": getattr(error, "msg", str(error)),
                                         "line": getattr(error, "lineno", None)}}
    return check([job(exercise, path)])[0]


def judge_answer(exercise: Exercise, path: Path) -> dict:
    """Compares a prediction with what a run of the demonstration says."""
    given = path.read_text("utf-8", "replace").rpartition("answer:")[2].strip()
    if not given:
        return {"passed": 0, "failure": {"kind": "todo", "got": "no answer yet"}}
    try:
        right = ASKED[exercise.number].answer(trace(exercise.session))
    except (RuntimeError, LookupError) as error:
        return broken(f"the demonstration could not be read: {error}")
    parts = r"(?<![\w-])\d+" if right[:1].isdigit() else r"[\w-]+"  # of "7 messages" the number counts
    same = re.findall(parts, given.lower()) == re.findall(parts, right.lower())
    return {"passed": int(same), "failure": None if same else {"kind": "wrong", "got": given, "right": right}}


def trace(session: str) -> list[dict]:
    """The events of the session's demonstration, played by the stand-in."""
    return traces([session])[session]


def traces(sessions: list[str]) -> dict[str, list[dict]]:
    """The events of each session's demonstration; several are played at once, which needs POSIX."""
    offline = {name: value for name, value in os.environ.items() if not name.startswith(("ANTHROPIC_", "MODEL_"))}
    with tempfile.TemporaryDirectory(prefix="practice-", ignore_cleanup_errors=True) as folder:
        command = [sys.executable, "-c", PLAY, str(ROOT), *sessions]
        try:
            done = subprocess.run(command, cwd=folder, env=offline, stdin=subprocess.DEVNULL, capture_output=True,
                                  text=True, errors="replace", timeout=PATIENCE, check=False)
        except subprocess.TimeoutExpired as error:
            raise RuntimeError(f"no end within {PATIENCE} seconds") from error
        if done.returncode:
            raise RuntimeError((done.stderr or done.stdout).strip()[-300:])
        return {session: [json.loads(line) for line in (Path(folder) / session).read_text("utf-8").splitlines()]
                for session in sessions}


def job(exercise: Exercise, path: Path, seconds: int = SECONDS) -> dict:
    """What practice_check needs to know."""
    return {"module": exercise.session, "path": str(path.resolve()), "function": exercise.function, "limit": seconds,
            "options": OPTIONS,
            "tests": [f"tests/test_{exercise.session}.py::test_{name}" for name in exercise.tests]}


def check(jobs: list[dict]) -> list[dict]:
    """The outcome of each job, from one process. It ends in time, and takes what it started with it."""
    if not importlib.util.find_spec("pytest"):
        return [broken("pytest is not installed for this Python")] * len(jobs)
    with tempfile.TemporaryDirectory(prefix="practice-", ignore_cleanup_errors=True) as folder:
        asked, told, said = (Path(folder) / name for name in ("jobs", "outcomes", "output"))
        asked.write_text(json.dumps(jobs), encoding="utf-8")
        told.touch()
        environment = {name: value for name, value in os.environ.items() if not name.startswith("PYTEST_")}
        first = ["-c", SHARE] if len(jobs) > MANY else []
        with said.open("wb") as output:
            process = subprocess.Popen(
                [sys.executable, "-X", "utf8", *first, practice_probe.__file__, asked, told],
                cwd=ROOT, start_new_session=True,
                stdin=subprocess.DEVNULL, stdout=output, stderr=output,
                env=environment | {"PYTEST_DISABLE_PLUGIN_AUTOLOAD": "1", "TEST_PROGRAM_SERVER": "", "PYTHONBREAKPOINT": "0"})
            try:
                process.wait(sum(job["limit"] * (len(job["tests"]) + 1) for job in jobs))
            except subprocess.TimeoutExpired:
                pass
            finally:
                kill(process)
        outcomes = [json.loads(line) for line in told.read_text(encoding="utf-8").splitlines()]
        words = " ".join(said.read_text("utf-8", "replace").strip().splitlines()[-3:])
    ended = broken(words) if words else {"passed": 0, "failure": {"kind": "ended", "got": "the program ended in a test"}}
    return outcomes + [ended] * (len(jobs) - len(outcomes))


def kill(process: subprocess.Popen) -> None:
    """Ends a process and all that it started."""
    try:
        os.killpg(process.pid, signal.SIGKILL) if hasattr(os, "killpg") else process.kill()
    except ProcessLookupError:
        pass
    process.wait()


# ---------------------------------------------------------------- the exercises themselves


def verify(found: list[Exercise]) -> list[str]:
    """What is wrong with the exercises: what is given must fail by a judgement, the originals must pass."""
    with tempfile.TemporaryDirectory(prefix="practice-") as folder, ThreadPoolExecutor() as pool:
        work = [pool.submit(answered, found), pool.submit(prove, found, Path(folder))]
        return complaints(found) + [problem for done in work for problem in done.result()]


def complaints(found: list[Exercise]) -> list[str]:
    """What can be said without running anything."""
    numbers, sessions = [one.number for one in found], [one.session for one in found]
    twice = sorted({number for number in numbers if numbers.count(number) > 1})
    texts = [f"{number}: there are two of this number" for number in twice]
    texts += [f"{session}: only one exercise" for session in sorted(set(sessions)) if sessions.count(session) < 2]
    for one in found:
        texts += [f"{one.number}: {words}" for wrong, words in (
            (not one.hints, "no hints"), (not one.task, "no task"),
            (not one.original.is_file(), f"{one.session}.py does not exist"),
            (one.number.partition(".")[0] != one.session[1:3].lstrip("0"), f"the number is not one of {one.session}"),
            (one.kind != "predict" and not one.tests, "no tests")) if wrong]
    return texts


def prove(found: list[Exercise], folder: Path) -> list[str]:
    """What is wrong with exercises that are judged by tests: one run for all, the originals once per session."""
    jobs, meant, problems = [], [], []
    for session in sorted({one.session for one in found}):
        names = dict.fromkeys(name for one in found if one.session == session for name in one.tests)
        whole = Exercise("", session, "fill in", "", (), tuple(names))
        jobs.append(job(whole, whole.original, PATIENCE))
        meant.append((session, True))
    for one in found:
        try:
            for too_much in {"fill in": [False], "find the bug": [False, True]}.get(one.kind, []):
                file = folder / f"{one.number}{' too much' * too_much}.py"
                file.write_text(carved(one, too_much), encoding="utf-8")
                tests = one.tests[::-1] if too_much else one.tests  # what is broken besides comes last
                jobs.append(job(replace(one, tests=tests), file, PATIENCE))
                meant.append((file.stem, False))
        except (ValueError, KeyError, OSError) as error:
            problems.append(f"{one.number}: {error}")
    for (name, passes), outcome in zip(meant, check(jobs)):
        failure = outcome["failure"]
        if passes and failure:
            problems.append(f"{name}: the original fails: {failure.get('behaviour', '')} {failure['got']}")
        elif not passes and (not failure or failure["kind"] not in ("todo", "wrong")):
            how = f"fails by accident: {failure['got']}" if failure else "passes its tests"
            problems.append(f"{name}: what a learner is given {how}")
    return problems


def answered(found: list[Exercise]) -> list[str]:
    """What is wrong with the questions on the sessions' demonstrations."""
    asked, problems, played = [one for one in found if one.kind == "predict"], [], {}
    sessions = sorted({one.session for one in asked})
    try:
        if hasattr(os, "fork"):
            played = traces(sessions)
    except (RuntimeError, OSError):
        pass  # one of them fails: which one?
    for session in sessions:
        try:
            events = played.get(session) or trace(session)
            problems += [f"{one.number}: the trace gives no answer" for one in asked
                         if one.session == session and not ASKED[one.number].answer(events).strip()]
        except (RuntimeError, LookupError, OSError) as error:
            problems.append(f"{session}: its questions cannot be answered from the trace: {error!r}")
    return problems
