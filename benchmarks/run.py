"""Measures what this repository promises about speed and memory, and says where it is missed.

    python benchmarks/run.py                all rows
    python benchmarks/run.py --quick        smaller files, trees and conversations
    python benchmarks/run.py loop grep      only these rows

Each figure is the median of five runs or more, with the smallest and the largest in brackets.
Where time is involved the goal is a ratio to something else on the same machine: a bare SDK loop,
ripgrep, the same command without us. The two sides take turns, so that a busy moment strikes both.

A row is a generator of Lines under @row. What needs a fresh interpreter is a function of this
file called through `fresh`. Everything lies in one temporary folder that is gone at the end.
"""

import argparse
import gc
import json
import os
import platform
import pty
import re
import shutil
import signal
import statistics
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import NamedTuple

ROOT = Path(__file__).resolve().parent.parent
sys.path[:0] = [str(ROOT), str(ROOT / "benchmarks")]
SETTINGS = ("ANTHROPIC_", "OFFLINE_", "MODEL_ID")


class Sizes(NamedTuple):
    """How much work a row does."""

    output: int = 500  # MB that bash prints
    file: int = 1024  # MB of the file that is read
    files: int = 50_000
    turns: tuple[int, int] = (200, 1_000)
    runs: int = 5


class Line(NamedTuple):
    """One line of the table; `met` is None where a figure is only for information."""

    what: str
    value: str
    against: str = ""
    ratio: str = ""
    goal: str = ""
    met: bool | None = None


ROWS: dict[str, Callable[[Sizes, Path], Iterator[Line]]] = {}


def row(function: Callable) -> Callable:
    """Adds a generator of Lines to the table, under its own name."""
    ROWS[function.__name__.removesuffix("_row")] = function
    return function


# ------------------------------------------------------------------------------- measuring


def clean_environment(**changes: str) -> dict[str, str]:
    """The environment without a key, an endpoint or a model: the stand-in answers."""
    return {k: v for k, v in os.environ.items() if not k.startswith(SETTINGS)} | {"TERM": "xterm"} | changes


def fresh(function: Callable, *arguments, **environment: str):
    """Calls a function of this file in a fresh interpreter; its result comes back through JSON."""
    code = (f"import json, sys; sys.path[:0] = {sys.path[:2]!r}; import run; "
            f"print(json.dumps(run.{function.__name__}(*json.loads(sys.argv[1]))))")
    done = subprocess.run([sys.executable, "-c", code, json.dumps(arguments)], stdout=subprocess.PIPE,
                          text=True, check=True, env=clean_environment(**environment))
    return json.loads(done.stdout.splitlines()[-1])


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


def compared(what: str, ours: list[float], theirs: list[float], goal: float | None, name: str) -> Line:
    """A line for a ratio of medians; without a goal it is only for information."""
    ratio = statistics.median(ours) / statistics.median(theirs)
    return Line(what, shown(ours), f"{name} {shown(theirs)}", f"{ratio:.2f}",
                f"<= {goal} x" if goal else "", ratio <= goal if goal else None)


def limited(what: str, seconds: list[float], goal: float, against: str = "") -> Line:
    """A line for a time that has a limit of its own."""
    return Line(what, shown(seconds), against, "", f"<= {goal * 1000:g} ms", statistics.median(seconds) <= goal)


def peak_memory() -> float:
    """MB that this process has used at most. Not ru_maxrss on Linux, which starts at the parent's."""
    try:
        return int(re.search(r"VmHWM:\s+(\d+)", Path("/proc/self/status").read_text())[1]) / 1024
    except OSError:
        import resource

        return resource.getrusage(resource.RUSAGE_SELF).ru_maxrss / (1 << 20)


@contextmanager
def stand_in() -> Iterator[str]:
    """The URL of a stand-in model in a process of its own."""
    with subprocess.Popen([sys.executable, str(ROOT / "offline.py"), "--port", "0"], stdout=subprocess.PIPE,
                          text=True, env=clean_environment()) as process:
        try:
            yield re.search(r"http://\S+", process.stdout.readline())[0]
        finally:
            process.terminate()


# ------------------------------------------------------------------------------- start and import


@row
def start_row(sizes: Sizes, folder: Path) -> Iterator[Line]:
    """Process start to prompt, and what comes on top of the SDK's import before the first answer."""
    def bare() -> float:
        return timed(lambda: subprocess.run([sys.executable, "-c", ""]))

    prompt, interpreter = in_turn(max(sizes.runs, 9), lambda: until_prompt(folder), bare)
    yield limited("process start to prompt", prompt, 0.10, f"bare python {shown(interpreter)}")
    with stand_in() as url:
        first, built, sdk = in_turn(sizes.runs, lambda: fresh(first_reply, False), lambda: fresh(first_reply, True),
                                    lambda: fresh(first_sdk_reply, url))
    yield limited("SDK imported to first reply", built, 0.05, "client built ahead, as beside the prompt")
    yield Line("  the client built then as well", shown(first), f"bare SDK, server runs {shown(sdk)}")


def until_prompt(folder: Path) -> float:
    """Seconds from starting s01 in a pseudo-terminal until its prompt is there."""
    outside, inside = pty.openpty()
    start, seen = time.perf_counter(), b""
    process = subprocess.Popen([sys.executable, str(ROOT / "s01_agent_loop.py")], stdin=inside, stdout=inside,
                               stderr=inside, cwd=folder, env=clean_environment(), start_new_session=True)
    os.close(inside)
    try:
        while b"s01 >> " not in re.sub(rb"\x1b\[[0-9;?]*[a-zA-Z]|[\x01\x02]", b"", seen):
            seen += os.read(outside, 4096)
        return time.perf_counter() - start
    except OSError:
        raise SystemExit(f"s01 ended before its prompt:\n{seen.decode(errors='replace')}") from None
    finally:
        process.kill()
        process.wait()
        os.close(outside)


TINY = {"model": "stand-in", "max_tokens": 100, "messages": [{"role": "user", "content": "say Hi."}]}


def first_reply(build_ahead: bool) -> float:
    import anthropic  # noqa: F401  its import is not what is measured

    import core

    if build_ahead:
        core.client()
    return timed(lambda: core.client().messages.create(**TINY))


def first_sdk_reply(url: str) -> float:
    import anthropic

    return timed(lambda: anthropic.Anthropic(api_key="none", base_url=url).messages.create(**TINY))


@row
def imports_row(sizes: Sizes, folder: Path) -> Iterator[Line]:
    """Importing a module is quick because it does not bring the SDK along."""
    for name in sorted(path.stem for path in ROOT.glob("*.py")):
        found = [fresh(import_time, name) for _ in range(sizes.runs)]
        yield Line(f"import {name}", shown([seconds for seconds, _ in found]),
                   goal="no SDK import", met=not any(sdk for _, sdk in found))


def import_time(name: str) -> tuple[float, bool]:
    return timed(lambda: __import__(name)), "anthropic" in sys.modules


# ------------------------------------------------------------------------------- loop


@row
def loop_row(sizes: Sizes, folder: Path) -> Iterator[Line]:
    """What class Agent costs on top of the requests it makes, and whether that grows."""
    few, many = sizes.turns
    with stand_in() as url:
        for before, turns in ((0, few), (many - few // 4, few // 4)):
            ours, theirs = fresh(loop_seconds, before, turns, sizes.runs, ANTHROPIC_BASE_URL=url, MODEL_ID="stand-in")
            yield compared(f"loop, turns {before} to {before + turns}", ours, theirs, 1.15, "bare SDK loop")
    first, last = (fresh(own_seconds, turns, sizes.runs) for turns in (few, many))
    yield compared(f"  Agent's own time a turn, {many} turns", last, first, 1.0, f"{few} turns")


def loop_seconds(before: int, turns: int, runs: int) -> list[list[float]]:
    """Seconds of `turns` turns after `before` others, by Agent and by a bare loop."""
    import core

    core.client()

    def seconds(loop: Callable) -> float:
        messages = conversation(before, turns)
        gc.collect()
        taken = timed(lambda: loop(messages))
        assert len(messages) == 2 * (before + turns), f"{loop.__name__} ended after {len(messages)} messages"
        return taken

    return in_turn(runs, lambda: seconds(agent_loop), lambda: seconds(bare_loop))


def conversation(before: int, turns: int) -> list[dict]:
    """A prompt with all steps, and the calls and results of those already taken."""
    steps = [f"note {number}" for number in range(before + turns - 1)]
    messages: list[dict] = [{"role": "user", "content": "\n".join([*steps, "say Done."])}]
    for number in range(before):
        messages += [
            {"role": "assistant", "content": [
                {"type": "tool_use", "id": f"earlier_{number}", "name": "note", "input": {"text": str(number)}}]},
            {"role": "user", "content": [
                {"type": "tool_result", "tool_use_id": f"earlier_{number}", "content": "noted"}]}]
    return messages


SCHEMA = {"type": "object", "properties": {"text": {"type": "string"}}, "required": ["text"]}
NOTE = {"name": "note", "description": "Take a note.", "input_schema": SCHEMA}


def agent_loop(messages: list[dict], kind: type | None = None) -> None:
    import core
    import s01_agent_loop

    note = core.Tool(*NOTE.values(), lambda text: "noted", read_only=True)
    agent = (kind or s01_agent_loop.Agent)(core.Workspace(ROOT), tools=core.registry(note), max_turns=10_000)
    agent.run(messages)


def bare_loop(messages: list[dict]) -> None:
    """The ten lines of s01's docstring, with the history as plain dicts, which is quicker."""
    import core
    import s01_agent_loop

    system, client, run = s01_agent_loop.SYSTEM.replace("{root}", str(ROOT)), core.client(), lambda text: "noted"
    while True:
        reply = client.messages.create(
            model="stand-in", max_tokens=16_000, tools=[NOTE], messages=messages, system=system)
        messages.append({"role": "assistant", "content": [block.to_dict() for block in reply.content]})
        calls = [block for block in reply.content if block.type == "tool_use"]
        if not calls:
            return
        messages.append({"role": "user", "content": [
            {"type": "tool_result", "tool_use_id": call.id, "content": run(**call.input)} for call in calls]})


def own_seconds(turns: int, runs: int) -> list[float]:
    """Seconds a turn of Agent alone: the replies are there already, nothing is sent."""
    import core
    from anthropic.types import Message
    from s01_agent_loop import Agent

    def reply(number: int) -> Message:
        call = {"type": "tool_use", "id": f"toolu_{number}", "name": "note", "input": {"text": str(number)}}
        return Message.model_validate({
            "id": "msg", "type": "message", "role": "assistant", "model": "none", "stop_reason": "tool_use",
            "content": [call] if number < turns - 1 else [{"type": "text", "text": "Done."}],
            "usage": {"input_tokens": 1, "output_tokens": 1}})

    class Replayed(Agent):
        def ask_model(self, messages: list[dict]) -> dict:
            self.request(messages)  # built as ever, and not sent
            return core.call_model(lambda: next(replies))

    seconds = []
    for _ in range(runs + 1):
        replies = iter([reply(number) for number in range(turns)])
        seconds.append(timed(lambda: agent_loop(conversation(0, turns), Replayed)) / turns)
    return seconds[1:]


# ------------------------------------------------------------------------------- tools


@row
def bash_row(sizes: Sizes, folder: Path) -> Iterator[Line]:
    """A command with a lot of output, against the same command writing to /dev/null."""
    text_file(folder / "output.txt", sizes.output)
    for command in (f"seq 1 {sizes.output * 118_000}", f"yes line | head -c {sizes.output}M", "cat output.txt"):
        used, ours, null, pipe = fresh(bash_figures, command, str(folder), sizes.runs)
        # whoever keeps output must read it from a pipe: cat does no more, while /dev/null copies nothing at all
        yield compared(f"bash {command}", ours, pipe, 1.3, "| cat > /dev/null")
        yield compared("  the same to nowhere", ours, null, None, "> /dev/null")
        yield Line("  peak memory above idle", f"{used:.1f} MB", goal="<= 60 MB", met=used <= 60)
    (folder / "output.txt").unlink()


def bash_figures(command: str, folder: str, runs: int) -> tuple:
    from workspace import Workspace

    workspace = Workspace(folder)
    workspace.bash("true")
    idle = peak_memory()
    workspace.bash(command)
    used = max(peak_memory() - idle, 0)
    shell = [lambda end=end: timed(lambda: subprocess.run(["bash", "-c", command + end], cwd=folder))
             for end in (" > /dev/null", " | cat > /dev/null")]
    return used, *in_turn(runs, lambda: timed(lambda: workspace.bash(command)), *shell)


def text_file(path: Path, megabytes: int) -> int:
    """Writes a text of lines of 64 bytes; returns how many there are."""
    block = b"".join(b"%63d\n" % number for number in range(1 << 14))
    with open(path, "wb") as file:
        for _ in range(megabytes):
            file.write(block)
    return megabytes << 14


@row
def read_row(sizes: Sizes, folder: Path) -> Iterator[Line]:
    """A few lines of a very large file."""
    lines = text_file(folder / "large.txt", sizes.file)
    for where, first, goal in (("start", 1, 0.010), ("middle", lines // 2, None)):
        used, seconds = fresh(read_figures, str(folder), first, sizes.runs)
        what = f"read 10 lines at the {where} of {sizes.file} MB"
        yield limited(what, seconds, goal) if goal else Line(what, shown(seconds))
        yield Line("  peak memory above idle", f"{used:.1f} MB", goal="<= 10 MB", met=used <= 10)
    (folder / "large.txt").unlink()


def read_figures(folder: str, first: int, runs: int) -> tuple[float, list[float]]:
    from workspace import Workspace

    workspace, idle = Workspace(folder), peak_memory()
    seconds = in_turn(runs, lambda: timed(lambda: workspace.read("large.txt", first, first + 9)))[0]
    return max(peak_memory() - idle, 0), seconds


@row
def grep_row(sizes: Sizes, folder: Path) -> Iterator[Line]:
    """grep against ripgrep itself, and the Python fallback against both."""
    yield from search_rows("grep", sizes, folder, [("needle", "**"), ("import", "**"), ("needle", "*.py")])


@row
def glob_row(sizes: Sizes, folder: Path) -> Iterator[Line]:
    """glob against ripgrep and fd listing the same names."""
    yield from search_rows("glob", sizes, folder, [("*.py",), ("**/*",)])


def search_rows(tool: str, sizes: Sizes, folder: Path, searches: list[tuple]) -> Iterator[Line]:
    if not shutil.which("rg"):
        yield Line(tool, "ripgrep (rg) is not installed")
        return
    tree, programs = source_tree(folder / "tree", sizes.files), folder / "bin"
    programs.mkdir(exist_ok=True)
    if shutil.which("git") and not (programs / "git").exists():
        (programs / "git").symlink_to(shutil.which("git"))
    for search in searches:
        what, them = f"{tool} {' '.join(search)}, {sizes.files:,} files", rivals(tool, tree, *search)
        found = fresh(search_figures, tool, str(tree), search, them, sizes.runs)
        for name, seconds in zip(them, found[1:]):
            yield compared(what, found[0], seconds, 1.3 if name == "rg" else None, name)
        slow = fresh(search_figures, tool, str(tree), search, {}, sizes.runs, PATH=str(programs))
        yield compared("  the same without ripgrep", slow[0], found[1], 5, "rg")
    if tool == "glob" and len(them) == 1:
        yield Line("glob against fd", "fd is not installed")


def rivals(tool: str, tree: Path, pattern: str, glob: str = "**") -> dict[str, list[str]]:
    """The commands that do the same search, by name."""
    import search

    if tool == "grep":
        return {"rg": search.ripgrep_command(tree, glob, *search.MATCHING, "--regexp", pattern)}
    fd = shutil.which("fd") or shutil.which("fdfind")
    return {"rg": search.ripgrep_command(tree, pattern, "--files")} | (
        {"fd": [fd, "--type", "f", "--hidden", "--glob", pattern.removeprefix("**/"), str(tree)]} if fd else {})


def search_figures(tool: str, tree: str, search: list, them: dict[str, list[str]], runs: int) -> list[list[float]]:
    from workspace import Workspace

    ours = getattr(Workspace(tree), tool)
    commands = [lambda command=command: timed(lambda: subprocess.run(command, capture_output=True))
                for command in them.values()]
    return in_turn(runs, lambda: timed(lambda: ours(*search[:1], **dict(zip(["glob"], search[1:])))), *commands)


def source_tree(tree: Path, files: int) -> Path:
    """A git work tree of small source files in nested folders, of which one in twenty is ignored."""
    if tree.exists():
        return tree
    text = "".join(f"def function_{number}(value):\n    return value + {number}\n\n" for number in range(15))
    for number in range(files):
        place = tree / f"part{number // 2500}" / f"folder{number // 50 % 50}"
        if number % 50 == 0:
            place.mkdir(parents=True)
        name = f"file{number}.{'log' if number % 20 == 0 else 'md' if number % 3 else 'py'}"
        (place / name).write_text(f"import os\n{text}" + "needle\n" * (number % 1000 == 7))
    (tree / ".gitignore").write_text("*.log\nbuild/\n")
    subprocess.run(["git", "init", "--quiet", str(tree)]) if shutil.which("git") else None
    return tree


# ------------------------------------------------------------------------------- the task graph

TASKS, PROCESSES = 1_000, 8
REST = 6  # seconds; for 5 s ext4 searches around the inodes that the run before has freed, and creates files slowly


def task_worker(folder: str, name: str) -> list[str]:
    """Waits for a line on standard input, creates its share of the tasks, then claims and finishes any."""
    from s07_task_graph import TaskGraph, ready

    graph, done = TaskGraph(Path(folder)), []
    print("ready", flush=True)
    sys.stdin.readline()
    for number in range(TASKS // PROCESSES):
        graph.create(f"task {number} of {name}", key=f"{name}-{number}")
    while task := graph.change(lambda tasks: next((
            {**task, "status": "in_progress", "owner": name} for task in ready(tasks)), None))[0]:
        graph.update(task["id"], status="done", result=name)
        done.append(task["id"])
    return done


def all_tasks(folder: Path) -> float:
    """Seconds in which several processes together create, claim and finish all tasks, each exactly once."""
    code = f"import json, sys; sys.path[:0] = {sys.path[:2]!r}; import run; print(json.dumps(run.task_worker(*sys.argv[1:])))"
    workers = [subprocess.Popen([sys.executable, "-c", code, str(folder), f"worker-{number}"], stdin=subprocess.PIPE,
                                stdout=subprocess.PIPE, text=True, env=clean_environment()) for number in range(PROCESSES)]
    for worker in workers:
        worker.stdout.readline()
    start = time.perf_counter()
    for worker in workers:
        worker.stdin.write("\n")
        worker.stdin.flush()
    done = [task for worker in workers for task in json.loads(worker.communicate()[0])]
    seconds = time.perf_counter() - start
    assert sorted(done) == sorted(f"t{number}" for number in range(1, TASKS + 1)), "a task was lost or done twice"
    return seconds


@row
def tasks_row(sizes: Sizes, folder: Path) -> Iterator[Line]:
    """Tasks created, claimed and finished by several processes on one folder."""
    seconds = []
    for number in range(sizes.runs):
        time.sleep(REST)
        seconds.append(all_tasks(folder / f"graph{number}" / "tasks"))
    rate = TASKS / statistics.median(seconds)
    yield Line(f"{TASKS:,} tasks by {PROCESSES} processes", shown(seconds), "", f"{rate:.0f}/s", ">= 300/s", rate >= 300)


# ------------------------------------------------------------------------------- table


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("rows", nargs="*", metavar="ROW", help=f"one of {', '.join(ROWS)}; all when none is given")
    parser.add_argument("--quick", action="store_true")
    options = parser.parse_args()
    if unknown := set(options.rows) - ROWS.keys():
        parser.error(f"there is no row {', '.join(sorted(unknown))}; the rows are {', '.join(ROWS)}")
    sizes = Sizes(50, 100, 5_000, (40, 200)) if options.quick else Sizes()
    signal.signal(signal.SIGTERM, lambda *_: sys.exit(143))  # so that the folder goes then, too
    machine = f"{platform.system()} {platform.machine()}, {os.cpu_count()} processors"
    print(f"Python {platform.python_version()}, {machine}\n")
    missed = 0
    try:
        with tempfile.TemporaryDirectory(prefix="benchmark-") as folder:
            for name in options.rows or ROWS:
                for line in ROWS[name](sizes, Path(folder)):
                    verdict = {True: "pass", False: "MISS", None: ""}[line.met]
                    missed += line.met is False
                    print(f"{line.what:<44} {line.value:<24} {line.against:<44} {line.ratio:>6} "
                          f"{line.goal:<14} {verdict}".rstrip(), flush=True)
    except KeyboardInterrupt:
        return 130
    print(f"\n{missed} missed" if missed else "\nall goals met")
    return min(missed, 1)


if __name__ == "__main__":
    sys.exit(main())
