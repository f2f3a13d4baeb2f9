"""What the rows have in common: what a line of the table is, and how its figure is taken.

A row is a generator of Lines under @row, in one of the files rows_*.py. Its docstring stands above
its lines in results.md. What needs a fresh interpreter is a function called through `fresh`, what
needs several at once through `together`; their arguments and results pass through JSON.
"""

import json
import os
import re
import statistics
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from contextlib import ExitStack, contextmanager
from pathlib import Path
from typing import NamedTuple

ROOT = Path(__file__).resolve().parent.parent
SETTINGS = ("ANTHROPIC_", "OFFLINE_", "MODEL_ID")


class Sizes(NamedTuple):
    """How much work a row does."""

    output: int = 500  # MB that bash prints
    file: int = 1024  # MB of the file that is read
    files: int = 50_000
    turns: tuple[int, int, int] = (50, 200, 1_000)
    tasks: int = 1_000
    messages: int = 10_000  # in mailboxes, and in the conversation that is compacted
    runs: int = 5


QUICK = Sizes(50, 100, 5_000, (20, 40, 200), 200, 2_000)


class Line(NamedTuple):
    """One line of the table; `met` is None where a figure is only for information.

    `why` is what is known of the reason where a goal is missed.
    """

    what: str
    value: str
    against: str = ""
    ratio: str = ""
    goal: str = ""
    met: bool | None = None
    why: str = ""


ROWS: dict[str, Callable[[Sizes, Path], Iterator[Line]]] = {}


def row(function: Callable) -> Callable:
    """Adds a generator of Lines to the table, under its own name."""
    ROWS[function.__name__.removesuffix("_row")] = function
    return function


# ------------------------------------------------------------------------------- processes


def clean_environment(**changes: str) -> dict[str, str]:
    """The environment without a key, an endpoint or a model: the stand-in answers."""
    return {k: v for k, v in os.environ.items() if not k.startswith(SETTINGS)} | {"TERM": "xterm"} | changes


def command(function: Callable, arguments: tuple, before: str = "") -> list[str]:
    """The command that prints what a call of a function of benchmarks/ returns, in a fresh interpreter."""
    module = function.__module__
    places = [str(ROOT), str(ROOT / "benchmarks")]
    code = (f"import json, sys; sys.path[:0] = {places!r}; import {module}; {before}"
            f"print(json.dumps({module}.{function.__name__}(*json.loads(sys.argv[1]))))")
    return [sys.executable, "-c", code, json.dumps(arguments)]


def fresh(function: Callable, *arguments, **environment: str):
    """Calls a function in a fresh interpreter; returns its result."""
    done = subprocess.run(command(function, arguments), stdout=subprocess.PIPE, text=True, check=True,
                          env=clean_environment(**environment))
    return json.loads(done.stdout.splitlines()[-1])


def together(function: Callable, *calls: tuple) -> tuple[float, list]:
    """Calls a function with each of the arguments, at the same time, in a fresh interpreter each.

    Returns the seconds from the common start until the last one is over, and the results.
    """
    wait = "print('ready', flush=True); sys.stdin.readline(); "
    with ExitStack() as stack:
        workers = []
        for arguments in calls:
            workers.append(stack.enter_context(subprocess.Popen(
                command(function, arguments, wait), stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True,
                env=clean_environment())))
            stack.callback(workers[-1].kill)
        for worker in workers:
            worker.stdout.readline()
        start = time.perf_counter()
        for worker in workers:
            worker.stdin.write("\n")
            worker.stdin.flush()
        results = [json.loads(worker.communicate()[0]) for worker in workers]
        return time.perf_counter() - start, results


@contextmanager
def stand_in() -> Iterator[str]:
    """The URL of a stand-in model in a process of its own."""
    with subprocess.Popen([sys.executable, str(ROOT / "offline.py"), "--port", "0"], stdout=subprocess.PIPE,
                          text=True, env=clean_environment()) as process:
        try:
            yield re.search(r"http://\S+", process.stdout.readline())[0]
        finally:
            process.terminate()


# ------------------------------------------------------------------------------- figures


def timed(function: Callable) -> float:
    """Seconds that a call takes."""
    start = time.perf_counter()
    function()
    return time.perf_counter() - start


def in_turn(runs: int, *functions: Callable[[], float]) -> list[list[float]]:
    """The results of each function, called in turn after one round that does not count."""
    rounds = [[function() for function in functions] for _ in range(runs + 1)]
    return [list(results) for results in zip(*rounds[1:])]


def shown(seconds: list[float]) -> str:
    """Median and spread: `61 ms (58-70)`."""
    unit, factor = ("s", 1) if statistics.median(seconds) >= 1 else ("ms", 1000)
    middle, low, high = (f"{part(seconds) * factor:.3g}" for part in (statistics.median, min, max))
    return f"{middle} {unit} ({low}-{high})"


def compared(what: str, ours: list[float], theirs: list[float], goal: float | None, name: str,
             why: str = "") -> Line:
    """A line for a ratio of medians; without a goal it is only for information."""
    ratio = statistics.median(ours) / statistics.median(theirs)
    return Line(what, shown(ours), f"{name} {shown(theirs)}", f"{ratio:.2f}",
                f"<= {goal} x" if goal else "", ratio <= goal if goal else None, why)


def limited(what: str, seconds: list[float], goal: float, against: str = "", why: str = "") -> Line:
    """A line for a time that has a limit of its own."""
    limit = f"<= {goal:g} s" if goal >= 1 else f"<= {goal * 1000:g} ms"
    return Line(what, shown(seconds), against, "", limit, statistics.median(seconds) <= goal, why)


def peak_memory() -> float:
    """MB that this process has used at most. Not ru_maxrss on Linux, which starts at the parent's."""
    try:
        return int(re.search(r"VmHWM:\s+(\d+)", Path("/proc/self/status").read_text())[1]) / 1024
    except OSError:
        import resource

        return resource.getrusage(resource.RUSAGE_SELF).ru_maxrss / (1 << 20)
