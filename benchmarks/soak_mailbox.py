"""Eight processes write to one inbox while its reader is killed (-9) and started again, many times.

    python benchmarks/soak_mailbox.py                             10,000 messages, 20 kills
    python benchmarks/soak_mailbox.py --messages 400 --kills 5    the test's size

The reader's history is a file. A message counts when its whole line is there; each must be there
once. Exits with 1 if a message is lost or doubled.
"""

import argparse
import collections
import json
import os
import random
import subprocess
import sys
import tempfile
import time
from pathlib import Path

sys.path.insert(0, str(Path(__file__).resolve().parent.parent))
from s09_teams import Mailbox

WRITERS, MEAN = 8, 0.25  # processes; seconds from one kill to the next, about half of which a reader needs to start


def write(folder: str, writer: str, count: str, seconds: str) -> None:
    """A writer process: sends its numbered messages, spread over the time in which the reader is killed."""
    for number in range(int(count)):
        time.sleep(float(seconds) / int(count))
        Mailbox(folder).send(f"writer-{writer}", "reader", f"{writer}/{number}")


def read(folder: str, history: str) -> None:
    """The reader process: what is new goes into the history, and only then is it acknowledged."""
    mailbox, parent = Mailbox(folder), os.getppid()
    with open(history, "a+b") as file:
        file.seek(0)
        whole = file.read().rpartition(b"\n")[0]
        file.truncate(len(whole) + 1 if whole else 0)  # a line that the kill left torn does not count
        known = {json.loads(line)["id"] for line in whole.splitlines()}
        again = sum(message["id"] in known for message in mailbox.receive("reader"))
        with open(f"{history}.again", "a") as figures:
            figures.write(f"{again}\n")  # delivered again because of the kill
        while os.getppid() == parent:  # should the soak be killed, its reader ends as well
            if new := mailbox.receive("reader", acknowledged=known):
                file.write(b"".join(json.dumps(message).encode() + b"\n" for message in new))
                file.flush()
                known |= {message["id"] for message in new}
            time.sleep(0.005)  # the kill should strike here: in the history, and not acknowledged


def start(*words: str) -> subprocess.Popen:
    """A process of this script."""
    return subprocess.Popen([sys.executable, __file__, *words])


def begun(history: str) -> list[int]:
    """For each reader that has begun to read: how many messages came to it again."""
    file = Path(f"{history}.again")
    return [int(line) for line in file.read_text().split()] if file.exists() else []


def drain(inbox: str, seconds: float = 60) -> None:
    """Waits until the reader has acknowledged everything, or the time is over."""
    deadline, path = time.monotonic() + seconds, Path(inbox) / "reader.jsonl"
    while path.exists() and path.stat().st_size and time.monotonic() < deadline:
        time.sleep(0.002)


def compare(inbox: str, history: str, sent: list[str]) -> list[str]:
    """What is wrong with the history, a line each: whatever was sent must be there once and whole."""
    with open(history, "rb") as file:
        counts = collections.Counter(json.loads(line)["content"] for line in file)
    wrong = [f"{name}: {counts[name]} times" for name in sent if counts[name] != 1]
    wrong += [f"{name}: never sent" for name in counts.keys() - set(sent)]
    damaged = Path(inbox) / "reader.damaged"
    return wrong + [f"{damaged} exists"] * damaged.exists()


def soak(folder: str, messages: int, kills: int, seed: int = 1) -> tuple[list[str], int, float]:
    """Runs it; returns what is wrong, how many messages were delivered again, and the seconds it took."""
    chance, begin = random.Random(seed), time.monotonic()
    inbox, history = os.path.join(folder, "inbox"), os.path.join(folder, "history")
    share, rest = divmod(messages, WRITERS)
    writers = [start("write", inbox, str(n), str(share + (n < rest)), str(kills * MEAN)) for n in range(WRITERS)]
    for number in range(kills):
        reader = start("read", inbox, history)
        while len(begun(history)) <= number and reader.poll() is None:
            time.sleep(0.002)  # a reader that dies before it reads would prove nothing
        time.sleep(chance.random() * MEAN)
        reader.kill()
        reader.wait()
    for writer in writers:
        writer.wait()
    reader = start("read", inbox, history)
    drain(inbox)
    reader.kill()
    reader.wait()
    sent = [f"{n}/{number}" for n in range(WRITERS) for number in range(share + (n < rest))]
    wrong = compare(inbox, history, sent)
    wrong += [f"a writer ended with {writer.returncode}" for writer in writers if writer.returncode]
    return wrong, sum(begun(history)), time.monotonic() - begin


if __name__ == "__main__":
    if sys.argv[1:2] in (["write"], ["read"]):
        sys.exit(globals()[sys.argv[1]](*sys.argv[2:]))
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--messages", type=int, default=10_000)
    parser.add_argument("--kills", type=int, default=20)
    arguments = parser.parse_args()
    with tempfile.TemporaryDirectory() as place:
        found, again, seconds = soak(place, arguments.messages, arguments.kills)
    figures = f"{arguments.messages:,} messages by {WRITERS} processes, {arguments.kills} kills of the reader"
    print("\n".join(found[:20]) or f"{figures}, {again} delivered again: each in the history once, {seconds:.1f} s")
    sys.exit(bool(found))
