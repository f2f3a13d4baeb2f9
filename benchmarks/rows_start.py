"""Rows: how soon the program is there."""

import os
import pty
import re
import statistics
import subprocess
import sys
import time
from collections.abc import Iterator
from pathlib import Path

from measure import ROOT, Line, Sizes, clean_environment, fresh, in_turn, limited, row, shown, stand_in, timed


@row
def start_row(sizes: Sizes, folder: Path) -> Iterator[Line]:
    """Process start to prompt, and what comes on top of the SDK's import before the first answer."""
    prompt, interpreter = in_turn(max(sizes.runs, 9), lambda: until_prompt(folder), lambda: run_python(""))
    yield limited("process start to prompt", prompt, 0.10, f"bare python {shown(interpreter)}")
    with stand_in() as url:
        first, built, sdk = in_turn(sizes.runs, lambda: fresh(first_reply, False),
                                    lambda: fresh(first_reply, True), lambda: fresh(first_sdk_reply, url))
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
    """A fresh process that imports one module and ends, minus one that imports nothing.

    It is quick because the SDK does not come along.
    """
    names = sorted(path.stem for path in ROOT.glob("s[0-9][0-9]_*.py"))
    for name in ("core", "console", "offline", *names):
        loaded = fresh(import_brings_sdk, name)
        ours, bare = in_turn(sizes.runs, lambda: run_python(f"import {name}"), lambda: run_python(""))
        seconds = [max(0.0, one - statistics.median(bare)) for one in ours]
        yield Line(f"import {name}", shown(seconds), goal="no SDK import", met=not loaded)


def import_brings_sdk(name: str) -> bool:
    __import__(name)
    return "anthropic" in sys.modules


def run_python(code: str) -> float:
    """Seconds of a process that runs this code in the repository; it must end well."""
    words = [sys.executable, "-c", code]
    return timed(lambda: subprocess.run(words, cwd=ROOT, env=clean_environment(), check=True))


@row
def suite_row(sizes: Sizes, folder: Path) -> Iterator[Line]:
    """The whole test suite, once, as `python -m pytest` runs it: without network and without a key."""
    with open(folder / "suite", "w+") as output:
        started = time.perf_counter()
        done = subprocess.run([sys.executable, "-m", "pytest"], cwd=ROOT, env=clean_environment(),
                              stdout=output, stderr=subprocess.STDOUT)
        seconds = time.perf_counter() - started
        output.seek(0)
        lines = output.read().strip().splitlines()
    passed, value = done.returncode == 0, f"{seconds:.1f} s"
    failed = [line.split()[1] for line in lines if line.startswith(("FAILED ", "ERROR "))]
    yield Line("the test suite", value, lines[-1], goal="<= 60 s", met=seconds <= 60, why=SLOW_SUITE)
    yield Line("  all of it passes", "yes" if passed else "no", ", ".join(failed), goal="yes", met=passed)


SLOW_SUITE = """Most of it is work of the processor: the tests play whole programs, and each Python that is
started imports the SDK anew."""
