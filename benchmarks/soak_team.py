"""Twenty teammates write to each other in a ring; at the end all are idle, and nothing is left.

    python benchmarks/soak_team.py                              20 teammates, 500 messages
    python benchmarks/soak_team.py --mates 5 --messages 40      smaller

Counts threads, child processes and open files before and after. Exits with 1 if anything is
wrong. The model is the stand-in, over the real SDK.
"""

import argparse
import gc
import os
import subprocess
import sys
import tempfile
import threading
import time
from pathlib import Path

sys.path.insert(0, str(Path(__file__).resolve().parent.parent))
import core
import offline
from s09_teams import Leading


def left_over() -> dict[str, int]:
    """Threads, child processes and open files (without sockets) of this process."""
    gc.collect()
    children = subprocess.run(["ps", "-o", "pid=", "--ppid", str(os.getpid())], capture_output=True, text=True).stdout
    files = []
    for number in os.listdir("/proc/self/fd") if os.path.isdir("/proc/self/fd") else []:
        try:
            files.append(os.readlink(f"/proc/self/fd/{number}"))
        except FileNotFoundError:  # the one that listed them
            continue
    return {"threads": threading.active_count(), "children": len(children.split()) - 1,  # ps itself
            "files": sum(not name.startswith(("socket:", "anon_inode:")) for name in files)}


def script(me: int, mates: int, sends: int) -> str:
    """What a member plays: its mails to the next one, of which the last asks for an answer."""
    steps = [f"send_message m{(me + 1) % mates} :: mail {number} of m{me}" for number in range(sends)]
    return "\n".join([*steps, "say sent all"])


def soak(folder: str, mates: int, messages: int) -> tuple[list[str], float]:
    """Runs it; returns what is wrong, and the seconds it took."""
    begin, wrong = time.monotonic(), []
    lead = Leading(core.Workspace(folder), permissions=core.Permissions(mode="yes"))
    for number in range(mates):  # all must be there before the first writes to the next
        lead.spawn_teammate(f"m{number}", "writer", "say ready")
    share, rest = divmod(messages, mates)
    for number in range(mates):
        lead.send_message(f"m{number}", script(number, mates, share + (number < rest)))
    history: list[dict] = []
    while lead.has_news(wait=True) and time.monotonic() - begin < 120:
        lead.request(history)  # the lead reads; what it would answer does not matter here
    states = {name: mate.state for name, mate in lead.teammates.items()}
    wrong += [f"{name} is {state}" for name, state in states.items() if state != "idle"]
    received = sum(core.text_of(message["content"]).count("\nmail ") for mate in lead.teammates.values()
                   for message in mate.messages if message["role"] == "user")
    wrong += [f"{received} of {messages} messages are in the histories"] * (received != messages)
    unread = [name for name in ["lead", *lead.teammates] if lead.team.mailbox.receive(name)]
    wrong += [f"unread mail of {', '.join(unread)}"] * bool(unread)
    lead.dismiss()
    still = [name for name, mate in lead.teammates.items() if mate.thread.is_alive()]
    return wrong + [f"threads alive: {', '.join(still)}"] * bool(still), time.monotonic() - begin


if __name__ == "__main__":
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--mates", type=int, default=20)
    parser.add_argument("--messages", type=int, default=500)
    arguments = parser.parse_args()
    with offline.start() as server, tempfile.TemporaryDirectory() as place:
        os.environ.update(ANTHROPIC_BASE_URL=server.url, MODEL_ID="stand-in")
        core.client()
        before = left_over()
        found, seconds = soak(place, arguments.mates, arguments.messages)
        core.client().close()
        deadline = time.monotonic() + 5  # the stand-in's own threads end with their connections
        while (after := left_over()) != before and time.monotonic() < deadline:
            time.sleep(0.05)
        found += [f"before: {before}, after: {after}"] * (after != before)
    print("\n".join(found) or f"{arguments.mates} teammates, {arguments.messages} messages: all idle, nothing left "
          f"({before}), {seconds:.1f} s")
    sys.exit(bool(found))
