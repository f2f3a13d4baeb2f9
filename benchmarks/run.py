"""Measures what this repository promises about speed and memory, and says where it is missed.

    python benchmarks/run.py                all rows; writes benchmarks/results.md
    python benchmarks/run.py --quick        smaller files, trees and conversations, without the test suite
    python benchmarks/run.py loop grep      only these rows

Only a full run writes results.md. Each figure is the median of five runs or more, with the smallest
and the largest in brackets. Where time is involved the goal is a ratio to something else on the same
machine: a bare SDK loop, ripgrep, the same command without us. The two sides take turns, so that a
busy moment strikes both. A row that fails is one line of the table, and the next row follows.

The rows are in rows_*.py, what they have in common in measure.py; soak_*.py also run alone.
Everything lies in one temporary folder that is gone at the end.
"""

import argparse
import importlib.metadata
import os
import platform
import re
import shutil
import signal
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator
from pathlib import Path

sys.path[:0] = [str(Path(__file__).resolve().parent.parent), str(Path(__file__).resolve().parent)]

import rows_loop  # noqa: F401  each adds its rows to ROWS, in this order
import rows_start  # noqa: F401
import rows_state  # noqa: F401
import rows_tools  # noqa: F401
from measure import QUICK, ROOT, ROWS, Line, Sizes

RESULTS = ROOT / "benchmarks" / "results.md"
ORDER = "start loop growth bash micro read grep glob tasks mailbox soak imports suite".split()
VERDICT = {True: "pass", False: "MISS", None: ""}


# ------------------------------------------------------------------------------- where it was measured


def first_match(pattern: str, path: str, otherwise: str) -> str:
    """The first group of a pattern in a file; `otherwise` where there is none."""
    try:
        found = re.search(pattern, Path(path).read_text(encoding="utf-8"), re.MULTILINE)
    except OSError:
        found = None
    return found[1] if found else otherwise


def machine() -> dict[str, str]:
    """The machine, its system and the moment, as a table of two columns."""
    memory = first_match(r"^MemTotal: +(\d+) kB", "/proc/meminfo", "")
    processor = first_match(r"^model name\s*: (.+)", "/proc/cpuinfo", platform.processor() or "unknown")
    system = first_match(r'^PRETTY_NAME="(.*)"', "/etc/os-release", platform.system())
    return {
        "date": time.strftime("%Y-%m-%d"),
        "processor": processor, "cores": str(os.cpu_count()),
        "memory": f"{int(memory) / (1 << 20):.0f} GB" if memory else "unknown",
        "system": f"{system}, {platform.system()} {platform.release()} {platform.machine()}",
        "load before": ", ".join(f"{load:.1f}" for load in os.getloadavg()) + " (over 1, 5 and 15 minutes)"}


def versions() -> dict[str, str]:
    """The version of each program that the figures depend on."""
    found = {"Python": platform.python_version(), "anthropic": importlib.metadata.version("anthropic")}
    for name, programs in {"ripgrep": ["rg"], "fd": ["fd", "fdfind"], "git": ["git"]}.items():
        program = next(filter(shutil.which, programs), None)
        said = program and subprocess.run([program, "--version"], capture_output=True, text=True).stdout or ""
        number = re.search(r"\d+(\.\d+)+", said)
        found[name] = number[0] if number else "not installed"
    return found


# ------------------------------------------------------------------------------- the table


def lines_of(name: str, sizes: Sizes, folder: Path) -> Iterator[Line]:
    """The lines of a row. Its failure is a line as well, and a miss."""
    try:
        yield from ROWS[name](sizes, folder)
    except Exception as error:
        text = " ".join(f"{type(error).__name__}: {error}".split())[:300]
        yield Line(f"the row {name}", "failed", text, met=False, why=f"It did not come to its end: {text}")


def as_text(line: Line) -> str:
    """A line for the terminal."""
    return (f"{line.what:<46} {line.value:<28} {line.against:<46} {line.ratio:>7} {line.goal:<14} "
            f"{VERDICT[line.met]}").rstrip()


def as_markdown(cells: tuple | list) -> str:
    """A line of a table."""
    return "| " + " | ".join(plain(cell) for cell in cells) + " |"


def plain(text: str) -> str:
    """Text that Markdown shows as it is."""
    return re.sub(r"([|*<>_\\])", r"\\\1", text.strip())


def report(facts: dict[str, str], found: dict[str, list[Line]]) -> str:
    """results.md: where and when, the lines of each row, and what falls short."""
    text = ["# Figures", "", "Written by a full run of `python benchmarks/run.py`. In brackets: the smallest",
            "and the largest run. A line without a goal is for information.", "", "| where | |", "|---|---|"]
    text += map(as_markdown, facts.items())
    for name, lines in found.items():
        about = "\n".join(part.strip() for part in (ROWS[name].__doc__ or "").strip().splitlines())
        text += ["", f"## {name}", "", about, ""]
        text += [as_markdown("what measured against ratio goal verdict".split()), "|---" * 6 + "|"]
        text += [as_markdown([*line[:5], VERDICT[line.met]]) for line in lines]
    missed = [(name, line) for name, lines in found.items() for line in lines if line.met is False]
    text += ["", "## What falls short, and why", ""]
    for name, line in missed:
        figures = ", ".join(filter(None, (line.value, line.ratio, line.goal and f"goal {line.goal}")))
        why = " ".join(line.why.split()) or "The reason is not known yet."
        text.append(f"- **{name}, {plain(line.what)}**: {plain(figures)}. {why}")
    return "\n".join([*text, *["Nothing: all goals are met."] * (not missed), ""])


def main() -> int:
    raw = argparse.RawDescriptionHelpFormatter
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=raw)
    parser.add_argument("rows", nargs="*", metavar="ROW", help=f"of {' '.join(ORDER)}; without: all")
    parser.add_argument("--quick", action="store_true")
    options = parser.parse_args()
    if unknown := set(options.rows) - ROWS.keys():
        parser.error(f"there is no row {', '.join(sorted(unknown))}; the rows are {', '.join(ORDER)}")
    signal.signal(signal.SIGTERM, lambda *_: sys.exit(143))  # so that folder and processes go then, too
    facts, found = machine() | versions(), {}
    print(*(f"{name} {value}" for name, value in facts.items()), sep=" · ", end="\n\n")
    try:
        with tempfile.TemporaryDirectory(prefix="benchmark-") as folder:
            for name in options.rows or [name for name in ORDER if not (options.quick and name == "suite")]:
                found[name] = []
                for line in lines_of(name, QUICK if options.quick else Sizes(), Path(folder)):
                    found[name].append(line)
                    print(as_text(line), flush=True)
    except KeyboardInterrupt:
        return 130
    if not options.rows and not options.quick:
        RESULTS.write_text(report(facts, found), encoding="utf-8")
    missed = sum(line.met is False for lines in found.values() for line in lines)
    print(f"\n{missed} missed" if missed else "\nall goals met")
    return min(missed, 1)


if __name__ == "__main__":
    sys.exit(main())
