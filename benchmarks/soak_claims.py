"""Processes that claim tasks from one board, some of them killed while they work: each task is finished exactly once.

    python benchmarks/soak_claims.py                    8 processes, 1,000 tasks, 3 killed
    python benchmarks/soak_claims.py --tasks 100        a small one, as the tests run it

A worker here claims, renews and finishes as a Worker of s11 does, without a model. What a process has
finished it notes in a file of its own as well: no task may be missing there, and none noted twice.
Exits 1 when one is, or when a killed worker's task did not come back.
"""

import argparse
import collections
import os
import random
import signal
import sys
import tempfile
import time
from pathlib import Path

sys.path.insert(0, str(Path(__file__).resolve().parent.parent))

from s11_autonomous import Board

LEASE = 1.0  # seconds; the killed ones' tasks come back after it


def work(folder: Path, name: str, doomed: bool) -> None:
    """The life of a worker process: until every task is done. A doomed one only begins tasks after a while."""
    board, parent = Board(folder / "tasks"), os.getppid()
    for number in range(1_000_000):
        task, tasks = board.claim(name, lease=LEASE)
        if doomed and task and number >= 2:
            (folder / f"{name}.holds").write_text(task["id"])
            while os.getppid() == parent:  # at work on it, until the kill
                time.sleep(1)
        if task and board.finish(task, f"by {name}"):
            with open(folder / f"{name}.finished", "a") as file:
                file.write(f"{task['id']}\n")
        if not task and all(one["status"] == "done" for one in tasks.values()):
            return
        time.sleep(random.uniform(0, 0.002) if task else 0.01)


def fork(folder: Path, name: str, doomed: bool) -> int:
    """Starts a worker process; returns its id."""
    if pid := os.fork():
        return pid
    code = 1
    try:
        work(folder, name, doomed)
        code = 0
    finally:
        os._exit(code)


def soak(folder: Path, processes: int, tasks: int, kills: int) -> list[str]:
    """Runs it and returns what was wrong, a line each."""
    board, began = Board(folder / "tasks"), time.monotonic()
    for number in range(tasks):
        board.create(f"task {number}", [f"t{number}"] if number % 5 else [])  # chains of five
    created, names = time.monotonic(), {f"worker-{number}": number < kills for number in range(processes)}
    pids = {name: fork(folder, name, doomed) for name, doomed in names.items()}
    wrong = []
    for name in (name for name in names if names[name]):
        while not (folder / f"{name}.holds").exists():
            assert time.monotonic() < created + 30, f"{name} got no task"
            time.sleep(0.005)
        os.kill(pids[name], signal.SIGKILL)
    for name, pid in pids.items():
        if (os.waitpid(pid, 0)[1] != 0) != names[name]:
            wrong.append(f"{name} did not end as it should")
    done = time.monotonic() - created
    graph = board.load()
    counted = collections.Counter(line for file in folder.glob("*.finished") for line in file.read_text().split())
    wrong += [f"{i} is {task['status']}" for i, task in graph.items() if task["status"] != "done"]
    wrong += [f"{i} was finished {counted[i]} times" for i in graph if counted[i] != 1]
    lost = sum("failures" in task for task in graph.values())
    wrong += [f"{lost} tasks came back, {kills} were held by the killed"] * (lost != kills)
    print(f"{tasks} tasks, {processes} processes, {kills} killed while working: created in {created - began:.1f} s, "
          f"done in {done:.1f} s, {tasks / done:.0f} tasks/s; {'; '.join(wrong) or 'each finished exactly once'}")
    return wrong


if __name__ == "__main__":
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    for option, default in (("--processes", 8), ("--tasks", 1_000), ("--kills", 3)):
        parser.add_argument(option, type=int, default=default)
    chosen = parser.parse_args()
    with tempfile.TemporaryDirectory() as there:
        sys.exit(bool(soak(Path(there), chosen.processes, chosen.tasks, chosen.kills)))
