"""practice_probe · the process that runs a session's tests against another version of the session

It is started by practice_judge with two files: the jobs, and where their outcomes go. A job is
{module, path, function, tests, options, limit}: the file `path` stands in for the session `module`, `tests` are
node ids, `options` those of pytest, `function` is what the learner writes, or "". An outcome is

    {"passed": 2, "failure": {"kind": "wrong", "behaviour": ..., "expected": ..., "got": ..., ...} or None}

with the first failure only. Kinds: todo (no body yet), wrong (a test's judgement), error (an exception
from the learner's code), syntax, endless, and broken (the tests themselves could not run).
"""

import ast
import functools
import json
import operator
import os
import re
import reprlib
import sys
import textwrap
import threading
import traceback
import types
from pathlib import Path

ROOT = Path(__file__).resolve().parent
BYTES = 4 << 30  # of memory: an endless loop that fills a list must not take the learner's machine with it
SHOWN = 400  # characters of a value
TRUE = {"==": operator.eq, "!=": operator.ne, "<": operator.lt, "<=": operator.le, ">": operator.gt, ">=": operator.ge,
        "is": operator.is_, "is not": operator.is_not, "in": lambda a, b: a in b, "not in": lambda a, b: a not in b}


def broken(text: str) -> dict:
    """The outcome when no test could say anything."""
    return {"passed": 0, "failure": {"kind": "broken", "got": text}}


class Listener:
    """A plugin of pytest that counts what passed and turns the first failure into plain words."""

    def __init__(self, job: dict, tell):
        self.job, self.tell, self.passed, self.failure = job, tell, 0, None
        self.calls: list[dict] = []  # of the function that the learner writes, in this test
        self.compared: list[tuple] = []
        self.timer, self.test = None, ""

    def watch(self, test: str) -> None:
        """Starts the clock for a test, or for importing the file."""
        self.stop()
        self.calls.clear()
        self.compared, self.test = [], test
        self.timer = threading.Timer(self.job["limit"], self.endless, [threading.get_ident()])
        self.timer.daemon = True
        self.timer.start()

    def stop(self) -> None:
        """Stops the clock."""
        if self.timer:
            self.timer.cancel()

    def endless(self, thread: int) -> None:
        """The clock has run out: tells where the learner's code is, and ends the process."""
        frame = sys._current_frames().get(thread)
        while frame and frame.f_code.co_filename != self.job["path"]:
            frame = frame.f_back
        self.fail("endless", got=f"no end within {self.job['limit']} seconds", line=frame.f_lineno if frame else None)
        self.tell({"passed": self.passed, "failure": self.failure})
        os._exit(1)

    def pytest_runtest_logstart(self, nodeid, location):
        """One test begins."""
        self.watch(nodeid)

    def pytest_runtest_logreport(self, report):
        """A test, its preparation or its end is over."""
        self.passed += report.when == "call" and report.passed

    def pytest_assertrepr_compare(self, config, op, left, right):
        """Two values are compared in an assertion that does not hold; the last false one is why."""
        try:
            if not TRUE[op](left, right):
                self.compared.append((op, left, right))
        except Exception:  # values may refuse to be compared
            self.compared.append((op, left, right))

    def pytest_exception_interact(self, node, call, report):
        """A test failed."""
        error, frames = call.excinfo.value, [entry for entry in call.excinfo.traceback if entry.path]
        own = [entry.lineno + 1 for entry in frames if str(entry.path) == self.job["path"]]
        in_test = [entry for entry in frames if entry.path == node.path]  # the first is the test, more are its helpers
        todo = isinstance(error, NotImplementedError) or any("NotImplementedError" in one["gave"] for one in self.calls)
        judged = not own or isinstance(error, AssertionError) or type(error).__name__ == "Failed"
        if judged and in_test and not todo:
            asked = [found for entry in in_test if (found := statement(entry))[0]]  # a helper may just return
            seen = self.compare(error, *(asked or [("", "")])[-1])
        else:
            seen = {"expected": "no error", "got": f"{type(error).__name__}: {error}"[:SHOWN]}
        at = in_test[0].lineno + 1 if in_test else 0
        self.fail("todo" if todo else "wrong" if judged else "error", **seen, at=at, snippet=snippet(node, at),
                  line=own[-1] if own and not judged else None, printed=getattr(report, "capstdout", "")[-SHOWN:])

    def compare(self, error: BaseException, asserted: str, values: str) -> dict:
        """What was expected and what came, in words; `values` are those of the names in the statement."""
        text, gave = str(error), self.calls[-1]["gave"] if self.calls else ""
        if match := re.search(r"(?i)regex: (.*)\n\s+(?:input|actual message): (.*)", text):
            return {"expected": f"an error that says {match[1]}", "got": match[2]}
        if "DID NOT RAISE" in text:
            return {"expected": "an error: " + text.partition("DID NOT RAISE ")[2], "got": gave or "none"}
        if not self.compared or not text.startswith("assert "):
            if not isinstance(error, AssertionError):
                values = f"{type(error).__name__}: {text}; {values}"[:SHOWN]
            called = self.job["function"].rpartition(".")[2]
            if gave and f"{called}(" in asserted:
                values = gave
            return {"expected": f"that this holds: {asserted}", "got": values or text.partition("\n")[0]}
        op, left, right = self.compared[-1]
        if op in ("==", "is"):
            where, left, right = difference(left, right)
            got, expected = windows(repr(left), repr(right))
            return {"expected": where + expected, "got": where + got}
        words = {"in": "something that contains {}", "not in": "something without {}"}
        if op in words:
            return {"expected": words[op].format(shown(left)), "got": shown(right)}
        return {"expected": f"a value {op} {shown(right)}", "got": shown(left)}

    def fail(self, kind: str, **more) -> None:
        """Keeps the first failure."""
        name, _, case = self.test.rpartition("::")[2].partition("[")
        last = self.calls[-1] if self.calls else {"input": "", "gave": ""}
        self.failure = self.failure or {
            "kind": kind, "test": self.test, "behaviour": name[5:].replace("_", " ") if name.startswith("test_") else name,
            "case": case.removesuffix("]"), **last, **more}


def shown(value, limit: int = SHOWN) -> str:
    """A value, without its middle when it is long."""
    return cut(repr(value), limit)


def cut(text: str, limit: int) -> str:
    """A text without its middle when it is long."""
    return text if len(text) <= limit else f"{text[:limit // 2]} … {text[-limit // 2:]}"


def difference(left, right) -> tuple[str, object, object]:
    """Where two values differ first, as a word before them, and the two parts that differ there."""
    path = ""
    while type(left) is type(right) and isinstance(left, (list, tuple, dict)) and len(left) == len(right):
        keys = [key for key in left if key in right] if isinstance(left, dict) else range(len(left))
        key = next((key for key in keys if left[key] != right[key]), None)
        if key is None or len(repr(left)) + len(repr(right)) < SHOWN // 2:
            break
        left, right, path = left[key], right[key], f"{path}[{key!r}]"
    return (f"at {path}: " if path else ""), left, right


def windows(left: str, right: str) -> tuple[str, str]:
    """Two texts, cut to what is around their first difference when they are long."""
    same = next((n for n, (a, b) in enumerate(zip(left, right)) if a != b), min(len(left), len(right)))
    start = max(0, same - SHOWN // 4) if max(len(left), len(right)) > SHOWN else 0
    end = start + SHOWN
    return tuple("…" * bool(start) + text[start:end] + "…" * (len(text) > end) for text in (left, right))


def statement(entry) -> tuple[str, str]:
    """What a test demanded at an entry of a traceback, on one line, and the values of the names in it."""
    source = Path(entry.path).read_text(encoding="utf-8")
    nodes = [node for node in ast.walk(ast.parse(source)) if isinstance(node, (ast.Assert, ast.Expr, ast.Assign))
             and node.lineno <= entry.lineno + 1 <= node.end_lineno]
    if not nodes:
        return "", ""
    node = nodes[-1].test if isinstance(nodes[-1], ast.Assert) else nodes[-1]
    names = dict.fromkeys(part.id for part in ast.walk(node) if isinstance(part, ast.Name) and part.id in entry.locals)
    values = [f"{name} = {shown(entry.locals[name], SHOWN // 3)}" for name in names if not callable(entry.locals[name])]
    return " ".join(ast.get_source_segment(source, node).split())[:SHOWN], ", ".join(values)


def snippet(node, line: int) -> list[str]:
    """The lines of a test up to the failing statement, the last few of them."""
    source = Path(node.path).read_text(encoding="utf-8")
    name = getattr(node, "originalname", None)
    for test in ast.walk(ast.parse(source)):
        if isinstance(test, ast.FunctionDef) and test.name == name and test.lineno <= line <= test.end_lineno:
            body = test.body[1:] if ast.get_docstring(test) else test.body
            end = next(one.end_lineno for one in body if one.lineno <= line <= one.end_lineno)
            return textwrap.dedent("\n".join(source.split("\n")[body[0].lineno - 1:end])).split("\n")[-8:]
    return []


def recorded(function, calls: list[dict]):
    """The same function, which notes what it was called with and what it gave."""
    short, inside = reprlib.Repr(), []
    short.maxlist = short.maxtuple = short.maxdict = 4
    short.maxstring = short.maxother = 60

    def brief(value) -> str:
        return cut(short.repr(value), SHOWN // 2)

    @functools.wraps(function)
    def noted(*values, **named):
        if inside:  # a recursive call
            return function(*values, **named)
        own = values[1:] if "." in function.__qualname__ else values
        arguments = [*map(brief, own), *(f"{name}={brief(value)}" for name, value in named.items())]
        calls.append({"input": f"{function.__name__}({', '.join(arguments)})", "gave": "nothing: it has not returned"})
        inside.append(True)
        try:
            result = function(*values, **named)
            calls[-1]["gave"] = short.repr(result)
            return result
        except BaseException as error:
            calls[-1]["gave"] = f"{type(error).__name__}: {error}"[:SHOWN]
            raise
        finally:
            inside.pop()

    return noted


def install(job: dict, listener: Listener) -> None:
    """Puts the file in the place of the session, for every import that follows."""
    for name in [name for name in sys.modules if re.match(r"s\d\d_|test_", name)]:
        del sys.modules[name]
    module = types.ModuleType(job["module"])
    module.__file__ = str(ROOT / f"{job['module']}.py")  # what lies beside the session is found as ever
    sys.modules[job["module"]] = module
    exec(compile(Path(job["path"]).read_text(encoding="utf-8"), job["path"], "exec"), module.__dict__)
    if job["function"]:
        owner, _, name = job["function"].rpartition(".")
        holder = getattr(module, owner) if owner else module
        setattr(holder, name, recorded(getattr(holder, name), listener.calls))


def run(job: dict, tell, scratch: Path) -> dict:
    """One job, in this process."""
    import pytest

    listener = Listener(job, tell)
    listener.watch(f"::importing {Path(job['path']).name}")
    try:
        install(job, listener)
    except SyntaxError as error:
        listener.fail("syntax", got=error.msg, line=error.lineno)
    except BaseException as error:
        frames = traceback.extract_tb(error.__traceback__)
        lines = [frame.lineno for frame in frames if frame.filename == job["path"]]
        listener.fail("error", expected=f"a file that can be imported and has {job['function'] or 'all it had'}",
                      got=f"{type(error).__name__}: {error}", line=lines[-1] if lines else None)
    else:
        code = pytest.main([*job["options"], f"--basetemp={scratch}", *job["tests"]], plugins=[listener])
        if code and not listener.failure:
            listener.failure = broken(f"pytest ended with {code!r}")["failure"]
    finally:
        listener.stop()
    return {"passed": listener.passed, "failure": listener.failure}


def main(asked: str, told: str) -> None:
    """Runs every job; tells each outcome as a line of JSON, at once."""
    try:
        import resource

        resource.setrlimit(resource.RLIMIT_AS, (BYTES, BYTES))
    except (ImportError, OSError, ValueError):
        pass  # not on this system

    def tell(outcome: dict) -> None:
        with open(told, "a", encoding="utf-8") as file:
            file.write(json.dumps(outcome) + "\n")

    for number, job in enumerate(json.loads(Path(asked).read_text(encoding="utf-8"))):
        tell(run(job, tell, Path(told).with_name(f"scratch-{number}")))


if __name__ == "__main__":
    main(*sys.argv[1:])
