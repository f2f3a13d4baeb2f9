"""Rows: state that several processes share, and a long conversation."""

import gc
import statistics
import subprocess
import sys
import time
from collections.abc import Iterator
from pathlib import Path

import soak_mailbox
from measure import (
    QUICK, ROOT, Line, Sizes, clean_environment, fresh, in_turn, limited, row, shown, timed, together,
)
from s06_compact import FREED_AT_ONCE, WORTH, micro
from s07_task_graph import TaskGraph, ready

PROCESSES = 1, 2, 4, 8
# seconds; for 5 s ext4 searches around the inodes that the run before has freed, and creates files slowly
REST = 6


@row
def micro_row(sizes: Sizes, folder: Path) -> Iterator[Line]:
    """A pass of micro-compaction over a long conversation: with nothing to do, and with much."""
    few = FREED_AT_ONCE * 4 // LONG - 1
    for what, many in (("no long result", 0), ("just too few long", few), ("all long", sizes.messages)):
        seconds, freed = fresh(micro_figures, sizes.messages, many)
        assert bool(freed) == (many == sizes.messages), f"{what}: {freed} tokens were freed"
        line = limited(f"{sizes.messages:,} messages, {what}", seconds, 0.005)
        yield Line(line.what, line.value, f"{freed:,} tokens freed") if freed else line


LONG = WORTH + 100  # characters of a result that micro-compaction may replace


def micro_figures(messages: int, many: int) -> tuple[list[float], int]:
    """Seconds of each pass over a conversation whose first `many` results are long, and the tokens freed."""
    freed = 0

    def once() -> float:
        nonlocal freed
        conversation: list[dict] = [{"role": "user", "content": "begin"}]
        for number in range(messages // 2):
            name, text = f"toolu_{number}", "x" * (LONG if number < many else 99)
            call = {"type": "tool_use", "id": name, "name": "read", "input": {"path": f"{number}.py"}}
            result = {"type": "tool_result", "tool_use_id": name, "content": text}
            conversation += [{"role": "assistant", "content": [call]}, {"role": "user", "content": [result]}]
        gc.collect()  # what the building left behind is not the pass's to clear away
        start = time.perf_counter()
        freed = micro(conversation)
        return time.perf_counter() - start

    return in_turn(30, once)[0], freed


@row
def tasks_row(sizes: Sizes, folder: Path) -> Iterator[Line]:
    """Tasks created, claimed and finished by processes that share one folder, each task exactly once."""
    for processes in PROCESSES:
        seconds = []
        for number in range(sizes.runs):
            time.sleep(REST)
            place = folder / f"graph-{processes}-{number}" / "tasks"
            seconds.append(all_tasks(place, processes, sizes.tasks))
        rate, last = sizes.tasks / statistics.median(seconds), processes == PROCESSES[-1]
        yield Line(f"{sizes.tasks:,} tasks, processes: {processes}", shown(seconds), "each finished once",
                   f"{rate:.0f}/s", ">= 300/s" if last else "", rate >= 300 if last else None)


def all_tasks(folder: Path, processes: int, tasks: int) -> float:
    """Seconds in which the processes together create, claim and finish all tasks."""
    calls = [(str(folder), f"worker-{number}", tasks // processes) for number in range(processes)]
    seconds, done = together(task_worker, *calls)
    finished = sorted(task for one in done for task in one)
    assert finished == sorted(f"t{number}" for number in range(1, tasks + 1)), "a task was lost or done twice"
    return seconds


def task_worker(folder: str, name: str, share: int) -> list[str]:
    """Creates its share of the tasks, then claims and finishes any; returns which it has finished."""
    graph, done = TaskGraph(Path(folder)), []
    for number in range(share):
        graph.create(f"task {number} of {name}", key=f"{name}-{number}")
    while task := graph.change(lambda tasks: next((
            {**task, "status": "in_progress", "owner": name} for task in ready(tasks)), None))[0]:
        graph.update(task["id"], status="done", result=name)
        done.append(task["id"])
    return done


@row
def mailbox_row(sizes: Sizes, folder: Path) -> Iterator[Line]:
    """Messages that processes write to one inbox, until its reader has them all in its history.

    Each must be there once and whole.
    """
    for processes in PROCESSES:
        seconds, wrong = [], []
        for number in range(sizes.runs):
            taken, found = all_mail(folder / f"mail-{processes}-{number}", processes, sizes.messages)
            seconds, wrong = [*seconds, taken], wrong + found
        rate = sizes.messages / statistics.median(seconds)
        checked = "; ".join(wrong[:3]) or "none lost, doubled or torn"
        yield Line(f"{sizes.messages:,} messages, a reader, writers: {processes}", shown(seconds), checked,
                   f"{rate:.0f}/s", "each once", not wrong)


def all_mail(folder: Path, writers: int, messages: int) -> tuple[float, list[str]]:
    """Seconds until the reader has all that is sent, as quickly as can be, and what is wrong with it."""
    inbox, history = str(folder / "inbox"), str(folder / "history")
    folder.mkdir()
    share = messages // writers
    reader = soak_mailbox.start("read", inbox, history)
    try:
        seconds, _ = together(soak_mailbox.write, *[(inbox, str(n), share, 0) for n in range(writers)])
        seconds += timed(lambda: soak_mailbox.drain(inbox))
    finally:
        reader.kill()
        reader.wait()
    sent = [f"{n}/{number}" for n in range(writers) for number in range(share)]
    return seconds, soak_mailbox.compare(inbox, history, sent)


@row
def soak_row(sizes: Sizes, folder: Path) -> Iterator[Line]:
    """The soaks, once: processes are killed while they read or work; agents write to each other in a ring."""
    for script, smaller in SOAKS.items():
        options = smaller.split() if sizes == QUICK else []
        words = [sys.executable, str(ROOT / "benchmarks" / f"{script}.py"), *options]
        started = time.perf_counter()
        done = subprocess.run(words, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True,
                              env=clean_environment())
        seconds, said = time.perf_counter() - started, done.stdout.strip().splitlines()[-1]
        yield Line(script, f"{seconds:.1f} s", said, goal="nothing wrong", met=done.returncode == 0)


SOAKS = {"soak_mailbox": "--messages 2000 --kills 5", "soak_claims": "--tasks 200",
         "soak_team": "--mates 5 --messages 40"}  # and what makes each of them small
