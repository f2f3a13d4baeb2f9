"""docs/build.py · fills in what the lessons show: code by its name, runs as they print, figures

    python docs/build.py            fills in every mark of docs/*.md and README.md
    python docs/build.py --check    changes nothing; names what is stale and exits 1

A mark is a comment in the Markdown. What stands between it and `<!-- end -->` is computed:

    <!-- code: s06_compact.plan_cut -->     a function, class, Class.method or constant, with a link;
                                            the body of one that is an exercise is folded away
    <!-- run: python s06_compact.py --demo (step 2, head 8, tail 3) -->
                                            the command's own output, or one step of a demonstration,
                                            or its first and last lines; fold 1 keeps 1 line of each
                                            result; (exit 1) for a command that fails
    <!-- doc: s01_agent_loop.Idea -->       one section of a file's docstring
    <!-- changed: s06 -->                   what the session adds to the agent before it; (source) without
                                            the measured part, where threads make figures vary
    <!-- exercises: s06 -->                 the session's exercises of all kinds, as practice.py has them
    <!-- sessions -->                       the table of all sessions
    <!-- figure: lines s06 -->              inline, one word: lines FILE, tools FILE, count NAME, value NAME,
                                            percent NAME, step s06 2 in (or another figure of that step)

source.py reads the files, play.py runs the commands. A file that is shown must exist, a run must
end as it should: otherwise this names the Markdown file, the line and the mark.
"""

import argparse
import ast
import contextlib
import functools
import importlib
import inspect
import itertools
import re
import sys
import tempfile
import textwrap
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

from play import play_all
from source import ROOT, Wrong, code_lines, exercises_in, find, imports_of, lines_of, link, path_of, source_of

RUN_OPTIONS = re.compile(r"\s+\(((?:(?:step|head|tail|fold|exit) \d+(?:, )?)+)\)$")


# ---------------------------------------------------------------------------------- marks


@dataclass(frozen=True)
class Mark:
    """One mark in a file: its words, its line, and where what it stands for begins and ends."""

    words: str
    line: int
    start: int
    end: int


def find_marks(text: str) -> Iterator[Mark]:
    """The marks of a file in order; Wrong when one is not closed, or an end closes nothing."""
    opened = None
    for comment in re.finditer(r"(?<!`)<!-- (.+?) -->", text, re.DOTALL):
        line = text.count("\n", 0, comment.start()) + 1
        if comment[1] == "end":
            if not opened:
                raise Wrong(f"{line}: <!-- end --> closes no mark")
            yield Mark(opened[1], text.count("\n", 0, opened.start()) + 1, opened.end(), comment.start())
            opened = None
        elif opened:
            raise Wrong(f"{line}: <!-- {opened[1]} --> before it is not closed by <!-- end -->")
        else:
            opened = comment
    if opened:
        raise Wrong(f"{text.count(chr(10), 0, opened.start()) + 1}: <!-- {opened[1]} --> is not closed")


def fill(file: Path) -> tuple[str, list[str]]:
    """The text as it should be, and a line for each mark that differs or cannot be filled in."""
    text, told, parts, done = file.read_text(encoding="utf-8"), [], [], 0
    name = file.relative_to(ROOT).as_posix()
    up = "" if file.parent == ROOT else "../"
    try:
        for mark in find_marks(text):
            old = new = text[mark.start:mark.end]
            try:
                kind, _, argument = mark.words.partition(": ")
                before = text[text.rfind("\n", 0, mark.start) + 1:mark.start].partition("<!--")[0]
                if kind == "figure" and not before.strip():
                    raise Wrong("a figure must not begin its line: Markdown would take the line as HTML")
                new = FILLERS[kind](argument, up) if kind in FILLERS else unknown(kind)
                new = new if kind == "figure" else f"\n\n{new}\n\n"
                if new != old:
                    told.append(f"{name}:{mark.line}: <!-- {mark.words} --> differs from what the program gives now")
            except Wrong as error:
                told.append(f"{name}:{mark.line}: <!-- {mark.words} -->: {error}")
            parts += [text[done:mark.start], new]
            done = mark.end
    except Wrong as error:
        told.append(f"{name}:{error}")
    return "".join(parts) + text[done:], told


def unknown(kind: str):
    raise Wrong(f"there is no mark {kind!r}; there are {', '.join(FILLERS)}")


# ---------------------------------------------------------------------------------- code and exercises


def fenced(text: str, language: str = "text") -> str:
    fence = "`" * max(3, 1 + max(map(len, re.findall("`+", text)), default=0))
    return f"{fence}{language}\n{text}\n{fence}"


def plain(text: str) -> str:
    """Prose from a comment or docstring, in which Markdown must not see tags."""
    return "`".join(part if number % 2 else part.replace("<", "&lt;") for number, part in enumerate(text.split("`")))


def code(name: str, up: str) -> str:
    """The filler of `code`: the lines of what a name stands for, and where they are."""
    path, node = find(name)
    last = node.end_lineno
    numbers = f"line {last}" if node.lineno == last else f"lines {node.lineno}–{last}"
    where = link(path, node, up, f"{path.name}, {numbers}")
    tasks = [one["number"] for one in exercises_in(path) if one["node"] is node]
    if not tasks:
        return f"{fenced(lines_of(path, node), 'python')}\n\n{where}"
    opening = fenced(lines_of(path, node, node.body[0].end_lineno), "python")
    summary = f"All of <code>{name.rpartition('.')[2]}</code> (it is exercise {' and '.join(tasks)}: try it first)"
    body = fenced(lines_of(path, node), "python")
    return f"{opening}\n\n<details><summary>{summary}</summary>\n\n{body}\n\n</details>\n\n{where}"


def doc(name: str, up: str) -> str:
    """The filler of `doc`: one section of a file's docstring, such as s01_agent_loop.Idea."""
    module, _, section = name.partition(".")
    text = ast.get_docstring(source_of(path_of(module))[1])
    found = re.search(rf"^{section}\b(.*(?:\n(?: .*)?)*)", text, re.MULTILINE)
    if not found:
        raise Wrong(f"the docstring of {module} has no section {section}")
    return fenced(textwrap.dedent(" " * len(section) + found[1]).strip("\n"))


def exercises(name: str, up: str) -> str:
    """The filler of `exercises`: all that practice.py has for a session, of each kind."""
    path = path_of(name)
    places = {one["number"]: link(path, one["node"], up, f"`{one['node'].name}`") for one in exercises_in(path)}
    found = [one for one in importlib.import_module("practice_carve").exercises() if one.session == path.stem]
    return "\n".join(f"- **{one.number}**, {f'in {place}' if (place := places.get(one.number)) else one.title}: "
                     f"{plain(one.task)}\n  `python practice.py start {one.number}`" for one in found)


# ---------------------------------------------------------------------------------- runs

runs: dict[str, dict] = {}  # by command: what it printed, step by step, and what was measured


def command_of(words: str) -> str:
    """The command that a mark needs to have been run, or nothing."""
    kind, _, argument = words.partition(": ")
    if kind == "run":
        return RUN_OPTIONS.sub("", argument)
    named = re.match(r"changed: (\w+)$|figure: step (\w+)", words)
    return f"python {path_of(named[1] or named[2]).name} --demo" if named else ""


def outcome(command: str, code: int = 0) -> dict:
    """What a run gave; Wrong, with its last words, when it did not end as it should."""
    done = runs[command]
    if done["exit"] != code:
        last = "".join(done["shown"]).strip().rpartition("\n")[2]
        raise Wrong(f"the run ended with exit code {done['exit']}: {last[:200]}")
    return done


def run(words: str, up: str) -> str:
    """The filler of `run`: what a command prints, or the part of it that was asked for."""
    command, found = RUN_OPTIONS.sub("", words), RUN_OPTIONS.search(words)
    options = {name: int(number) for name, number in re.findall(r"([a-z]+) (\d+)", found[1] if found else "")}
    parts = outcome(command, options.get("exit", 0))["shown"]
    step = options.get("step")
    if step and step >= len(parts):
        raise Wrong(f"the demonstration has {len(parts) - 1} steps")
    lines = (parts[step] if step else "".join(parts)).strip("\n").split("\n")
    lines = folded(lines, options["fold"]) if "fold" in options else lines
    tail = options.get("tail", 0)
    head = options.get("head", 0 if tail else len(lines))
    if head + tail < len(lines):
        left = f"[... {len(lines) - head - tail} more lines, left out here]"
        lines = [*lines[:head], left, *lines[len(lines) - tail:]]
    text = "\n".join(lines)
    above = f"`{command}`, step {step} of {len(parts) - 1}:\n\n" if step else ""
    return above + fenced(text if step else f"$ {command}\n{text}")


def folded(lines: list[str], keep: int) -> list[str]:
    """The lines with only the first ones of each result, which the screen shows further in than its call."""
    kept: list[str] = []
    for inner, group in itertools.groupby(lines, lambda line: not line or line.startswith("    ")):
        group = [*group]
        short = inner and len(group) > keep + 1
        left = f"    [... {len(group) - keep} more lines, left out here]"
        kept += [*group[:keep], left] if short else group
    return kept


# ---------------------------------------------------------------------------------- figures


def sessions_until(last: Path | None = None) -> list[Path]:
    """The sessions in order, up to and without one of them. A file that cannot be run yet is none."""
    return [path for path in sorted(ROOT.glob("s[0-9][0-9]_*.py")) if main_call(path) and (not last or path < last)]


def main_call(path: Path) -> ast.Call | None:
    """The call of `main` at the end of a session."""
    return next((node for node in ast.walk(source_of(path)[1].body[-1])
                 if isinstance(node, ast.Call) and ast.unparse(node.func) == "main"), None)


def module_of(path: Path):
    try:
        return importlib.import_module(path.stem)
    except Exception as error:
        raise Wrong(f"{path.name} cannot be imported: {type(error).__name__}: {error}") from error


@functools.cache
def tools_of(path: Path) -> list[str]:
    """The names of the tools of a session's agent, as its own `main` call builds it."""
    import core

    module = module_of(path)
    try:
        make = eval(ast.unparse(main_call(path).args[0]), vars(module))
        with tempfile.TemporaryDirectory() as folder:
            return list(make(core.Workspace(Path(folder))).tools)
    except Exception as error:
        raise Wrong(f"the agent of {path.name} cannot be built: {type(error).__name__}: {error}") from error


def tools_added(path: Path) -> list[str]:
    """The tools that a session is the first to have."""
    known = {name for earlier in sessions_until(path) for name in tools_of(earlier)}
    return [name for name in tools_of(path) if name not in known]


def listed(names: list[str]) -> str:
    return ", ".join(f"`{name}`" for name in names) or "none"


def figure(words: str, up: str) -> str:
    """The filler of `figure`: one figure in a line of prose."""
    kind, name, *more = words.split()
    if kind == "lines":
        return f"{code_lines(path_of(name)):,}"
    if kind == "tools":
        return listed(tools_added(path_of(name)))
    if kind == "step":
        steps = outcome(f"python {path_of(name).name} --demo")["steps"]
        value = steps[int(more[0]) - 1].get(more[1])
        return f"{len(value) if isinstance(value, list) else value:,}"
    module, _, inner = name.partition(".")
    value = getattr(module_of(path_of(module)), inner, None)
    shown = {"value": lambda: f"{value:,}", "percent": lambda: f"{value * 100:g} %", "count": lambda: f"{len(value):,}"}
    if value is None or kind not in shown:
        raise Wrong(f"there is no {name}" if kind in shown else f"there is no figure {kind!r}")
    return shown[kind]()


def sessions(_: str, up: str) -> str:
    """The filler of `sessions`: one row for each session."""
    rows = ["| file | mechanism | code lines | tools it adds | builds on |", "|---|---|---|---|---|"]
    for path in sessions_until():
        doc = ast.get_docstring(source_of(path)[1])
        mechanism = doc.split("\n")[0].partition(" · ")[2]
        lesson = ROOT / "docs" / f"{path.stem}.md"
        place = ("docs/" if not up else "") + lesson.name
        title = f"[{mechanism}]({place})" if lesson.exists() else mechanism
        below = re.search(r"^Builds on (.*(?:\n .*)*)", doc, re.MULTILINE)[1].partition(";")[0].partition("(")[0]
        below = ", ".join(dict.fromkeys(word.partition("_")[0] for word in re.findall(r"(?:s\d\d_)?\w+(?=\.py)", below)))
        rows.append(f"| [`{path.name}`]({up}{path.name}) | {title} | {code_lines(path)} | "
                    f"{listed(tools_added(path)).replace(', ', ' ')} | {below} |")
    return "\n".join(rows)


# ---------------------------------------------------------------------------------- the change view


def changed(words: str, up: str) -> str:
    """The filler of `changed`: what the source adds, and what that does to the same request."""
    name, only_source = words.removesuffix(" (source)"), words.endswith(" (source)")
    path = path_of(name)
    taken = [f"`{module}` ({', '.join(names)})" for module, names in imports_of(path).items()]
    return "\n".join([
        f"- Tools added: {listed(tools_added(path))}.",
        f"- Taken from other files: {'; '.join(taken)}.",
        f"- Size: {code_lines(path)} lines of code.", "", *overrides(path, up),
        *([] if only_source else ["", *comparison(path)])])


def overrides(path: Path, up: str) -> list[str]:
    """A table of the steps that the classes of a session override, each beside the step before it."""
    module = module_of(path)
    agent = module_of(path_of("s01")).Agent
    rows = []
    for own in [made for made in vars(module).values() if inspect.isclass(made) and made.__module__ == path.stem]:
        if issubclass(own, agent) and own is not agent:
            steps = [name for name, made in vars(own).items() if callable(made) and name in vars(agent)]
            for step in [step for step in steps if step != "__init__"]:
                base = next(base for base in own.__mro__[1:] if step in vars(base))
                rows.append(f"| `{step}` | {in_words(base, step, up)} | {in_words(own, step, up)} |")
    if not rows:
        first = module is module_of(path_of("s01"))
        return ["Every step of the loop is defined here." if first else "No step of the loop is overridden."]
    return ["| step | before | now |", "|---|---|---|", *rows]


def in_words(owner: type, step: str, up: str) -> str:
    """The first sentence of a method, and a link to it."""
    path, node = find(f"{owner.__module__}.{owner.__name__}.{step}")
    words = " ".join((ast.get_docstring(node) or "").split("\n\n")[0].split())
    first = re.match(r".*?\.(?=\s|$)|.*", words)[0].rstrip(".")
    return f"{link(path, node, up, owner.__name__)}: {plain(first)}".replace("|", "\\|")


def comparison(path: Path) -> list[str]:
    """A table of the first two steps of a demonstration: the agent before, and the new one."""
    before, now = outcome(f"python {path.name} --demo")["steps"][:2]
    new = [tool for tool in now["tools"] if tool not in before["tools"]]
    gone = [tool for tool in before["tools"] if tool not in now["tools"]]
    differ = "; ".join(f"{word} {listed(names)}" for word, names in (("with", new), ("without", gone)) if names)
    events = [kind for kind in {**before["events"], **now["events"]} if kind not in ("user", "decision")]
    rows = [
        ("system prompt, first request", *(f"{step['system']:,} characters" for step in (before, now))),
        ("tools, first request", str(len(before["tools"])), f"{len(now['tools'])}" + f", {differ}" * bool(differ)),
        ("their definitions", *(f"{step['definitions']:,} characters" for step in (before, now))),
        ("requests", *(f"{step['calls']}" for step in (before, now))),
        ("tokens in", *(f"{step.get('in', 0):,}, of these {step.get('cached', 0):,} from cache"
                        for step in (before, now))),
        ("tokens out", *(f"{step.get('out', 0):,}" for step in (before, now))),
        ("ends with", *(f"`{step['ends']}`" for step in (before, now))),
        ("events", *(", ".join(f"{step['events'].get(kind, 0)} {kind}" for kind in events) for step in (before, now)))]
    return [f"The first two steps of `python {path.name} --demo`, measured:", "",
            "| | the agent before (step 1) | now (step 2) |", "|---|---|---|", *(f"| {' | '.join(row)} |" for row in rows)]


FILLERS = {"code": code, "doc": doc, "run": run, "figure": figure, "changed": changed, "exercises": exercises,
           "sessions": sessions}


def main() -> int:
    """The command line: 0 when everything is as it should be (or is now), else 1."""
    parser = argparse.ArgumentParser(description="Fills in what the lessons show.")
    parser.add_argument("--check", action="store_true", help="change nothing; name what is stale and exit 1")
    check = parser.parse_args().check
    sys.path.insert(0, str(ROOT))
    files = [ROOT / "README.md", *sorted((ROOT / "docs").glob("*.md"))]
    commands = set()
    for file in files:
        with contextlib.suppress(Wrong):  # told when the file is filled in
            for mark in find_marks(file.read_text(encoding="utf-8")):
                with contextlib.suppress(Wrong):
                    commands.add(command_of(mark.words))
    runs.update(play_all(sorted(commands - {""})))
    failed = 0
    for file in files:
        text, told = fill(file)
        if not check and text != file.read_text(encoding="utf-8"):
            file.write_text(text, encoding="utf-8", newline="\n")
            print(f"{file.relative_to(ROOT)}: filled in")
            told = [line for line in told if "differs from what" not in line]
        failed += len(told)
        print(*told, sep="\n", end="\n" * bool(told))
    if check and failed:
        print("to fill in what differs: python docs/build.py")
    return int(failed > 0)


if __name__ == "__main__":
    sys.exit(main())
