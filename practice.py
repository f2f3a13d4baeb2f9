"""practice · exercises carved from the sessions, judged by the sessions' own tests

    python practice.py                  how far you are, and what to do next
    python practice.py start 6.1        writes practice/s06_compact.py with
                                        something to do in it
    python practice.py check            judges what you changed last
                                        (or: check 6.1; check all)
    python practice.py watch            the same at each save
    python practice.py hint             one more hint
    python practice.py run 6.1 --demo   runs your file like the session itself
    python practice.py diff 6.1         your solution and the original, once
                                        solved or after three tries
    python practice.py reset 6.1        begins anew; your old file is kept

Three kinds: write a function whose body was removed; find a bug that was put
in, from what a user reports; predict what happens in the session's
demonstration. Any solution that does what the tests demand is right; it need
not look like the original. Lessons: docs/index.md. For teachers:
docs/teaching.md.
"""

import argparse
import difflib
import json
import os
import re
import shutil
import subprocess
import sys
import textwrap
import time
from datetime import UTC, datetime
from pathlib import Path

import core
from practice_carve import FIRST_LINE, ROOT, Exercise, callers, carved, question, source_of, unmarked
from practice_desk import Desk, Usage
from practice_judge import SECONDS, judge, trace, verify
from practice_table import ASKED

TRIES = 3  # after which `diff` shows the original without a solution
POLL = 0.2  # seconds between two looks at the files of `watch`
GLYPHS = {"passed": "✓", "failed": "✗", "started": "▸", "": "·"}


def say(text: str = "", style: str = "", wrap: bool = True) -> None:
    """One line or more, wrapped to the terminal and coloured where colours are wanted."""
    width = min(shutil.get_terminal_size().columns, 100)
    for line in text.split("\n"):
        indent = re.match(r"\s*(\S+ {2,})?", line)[0]
        text = textwrap.fill(line, width, subsequent_indent=" " * len(indent), drop_whitespace=True,
                             break_on_hyphens=False) if wrap and len(line) > width else line
        text = text.replace("\N{NO-BREAK SPACE}", " ")
        if style and sys.stdout.isatty() and not os.environ.get("NO_COLOR") and os.environ.get("TERM") != "dumb":
            from rich.console import Console

            Console(highlight=False, soft_wrap=True).print(text, style=style, markup=False)
        else:
            print(text, flush=True)


# ---------------------------------------------------------------------------- commands


def overview(desk: Desk) -> int:
    """How far the learner is, and what comes next."""
    progress, sessions = desk.progress(), {}
    for one in desk.all:
        sessions.setdefault(one.session, []).append(one)
    solved = sum(progress.get(one.number, {}).get("passed", False) for one in desk.all)
    say(f"{solved} of {len(desk.all)} exercises solved      ✓ solved   ✗ not yet   ▸ started   · new\n")
    for session, ones in sessions.items():
        marks = "   ".join(f"{one.number}\N{NO-BREAK SPACE}{GLYPHS[state(desk, one)]}" for one in ones)
        done = all(progress.get(one.number, {}).get("passed") for one in ones)
        say(f"  {session:<18} {marks}", "green" if done else "")
    say()
    if not (one := desk.next()):
        say("All of them. docs/ and the sessions behind them are yours now; break something.", "green")
    elif desk.started(one):
        say(f"next: {one.number}, {one.title}, in {shown(desk.file(one))}\n    python practice.py check {one.number}")
    else:
        say(f"next: {one.number}, {one.title}\n    python practice.py start {one.number}")
    return 0


def state(desk: Desk, exercise: Exercise) -> str:
    """passed, failed, started, or "" when it was never begun."""
    known = desk.of(exercise)
    if known.get("passed"):
        return "passed"
    return "failed" if known.get("tries") else "started" if desk.started(exercise) else ""


def shown(path: Path) -> str:
    """A path as short as it can be typed."""
    near = os.path.relpath(path)
    return str(path) if near.startswith("..") else near


def start(desk: Desk, exercise: Exercise) -> int:
    """Puts the exercise's file in its place and says what to do."""
    path = desk.file(exercise)
    if desk.started(exercise) and path.parent.parent.name != "kept":
        say(f"{exercise.number} is started already; to begin anew: python practice.py reset {exercise.number}", "dim")
    else:
        desk.begin(exercise)
    describe(desk, exercise)
    return 0


def describe(desk: Desk, exercise: Exercise) -> None:
    """The task and the three commands for it."""
    path = desk.file(exercise)
    lines = path.read_text("utf-8", "replace").split("\n")
    mark = {"fill in": f"# exercise {exercise.number}:", "predict": "answer:"}.get(exercise.kind)
    line = next((f", line {n}" for n, text in enumerate(lines[1:], 2) if mark and text.lstrip().startswith(mark)), "")
    say(f"{exercise.number}  {exercise.title}", "bold")
    say(f"    {exercise.task}\n")
    if exercise.kind == "predict":
        say(f"  think   with DEMO, at the end of {exercise.session}.py\n"
            f"  answer  python practice.py check {exercise.number} \"...\"     or in {shown(path)}{line}")
    else:
        say(f"  edit    {shown(path)}{line}\n  check   python practice.py check       watch: at each save")
    if exercise.kind == "find the bug":
        say(f"  try     python practice.py run {exercise.number}       with the bug in it")
    say(f"  stuck   python practice.py hint        {len(exercise.hints)} of them")


def check_one(desk: Desk, exercise: Exercise, answer: str | None = None) -> int:
    """Judges one exercise, remembers it, and shows the outcome."""
    if answer is not None and exercise.kind != "predict":
        raise Usage(f"{exercise.number} is no question; check {exercise.number} takes nothing more")
    if answer is None and not desk.started(exercise):
        raise Usage(f"{exercise.number} is not started: python practice.py start {exercise.number}")
    if answer is not None:
        core.atomic_write(desk.file(exercise), (question(exercise).rstrip() + f" {answer}\n").encode())
    outcome = judge(exercise, desk.file(exercise))
    failure, known = outcome["failure"], desk.of(exercise)
    tries = known.get("tries", 0) + (bool(failure) and failure["kind"] in ("wrong", "error", "endless", "ended"))
    now = f"{datetime.now(UTC):%Y-%m-%dT%H:%M:%SZ}"
    desk.note(exercise.number, tries=tries, passed=not failure, **({} if failure else {"at": known.get("at", now)}))
    show_failure(desk, exercise, outcome) if failure else show_success(desk, exercise, outcome)
    return int(bool(failure))


def counted(number: int) -> str:
    """So many behaviours, in words."""
    return f"{number} behaviour{'s' if number > 1 else ''} shown"


def show_success(desk: Desk, exercise: Exercise, outcome: dict) -> None:
    """What was shown to work, and where to look now."""
    why = ASKED[exercise.number].read if exercise.kind == "predict" else counted(outcome["passed"])
    say(f"{exercise.number}  ✓ right: {why}", "green")
    say(f"\n  compare  python practice.py diff {exercise.number}")
    if exercise.function and (used := callers(exercise)):
        say(f"  look at  {' and '.join(used[:3])} in {exercise.session}.py: there it is used")
    lesson = f"docs/{exercise.session}.md"
    say(f"  see      python {exercise.session}.py --demo" + f"     read {lesson}" * (ROOT / lesson).is_file())
    if following := desk.next(exercise):
        say(f"  next     python practice.py start {following.number}     {following.title}")


def show_failure(desk: Desk, exercise: Exercise, outcome: dict) -> None:
    """The first behaviour that is missing, in plain words."""
    failure, path = outcome["failure"], shown(desk.file(exercise))
    line = f"{path}, line {failure['line']}" if failure.get("line") else path
    heads = {"todo": "nothing to judge yet", "syntax": f"this is no Python yet: {failure['got']}\n    {line}",
             "broken": f"the tests could not run; that is no fault of yours: {failure['got']}",
             "endless": f"it does not end: stopped after {SECONDS} seconds", "ended": "it ended the whole program"}
    shown_already = f"; {counted(outcome['passed'])} already" if outcome["passed"] else ""
    say(f"{exercise.number}  ✗ {heads.get(failure['kind'], 'not yet' + shown_already)}", "red")
    if failure["kind"] == "broken":
        say("\n  next  python -m pip install -e '.[test]', then `python -m pytest` should pass")
        return
    if failure.get("behaviour"):
        show_behaviour(failure, line)
    elif "right" in failure:
        say(f"\n  you said  {failure['got']}\n  a run     says something else: python {exercise.session}.py --demo")
    act = f"{'write' if failure['kind'] == 'todo' else 'mend'} {path}, then: python practice.py check"
    say("\n  next  " + (act if exercise.kind != "predict" else f'python practice.py check {exercise.number} "..."'))
    if (left := len(exercise.hints) - desk.of(exercise).get("hints", 0)) > 0:
        say(f"        python practice.py hint     {left} left")
    if desk.of(exercise).get("tries", 0) >= TRIES:
        say(f"        python practice.py diff {exercise.number}     the original, if you give up")


def show_behaviour(failure: dict, line: str) -> None:
    """One failing test: what it is about, input, expected, got, and its source."""
    case = f" ({failure['case']})" if failure["case"] else ""
    say(f"\n  This should hold, and does not yet:\n    {failure['behaviour']}{case}", "bold")
    got = failure["got"] + (f"   ({line})" if failure.get("line") else "")
    if failure["kind"] == "todo":
        got = "nothing: the body is still to be written"
    say()
    expected = "" if failure["kind"] == "todo" else failure.get("expected", "")
    gave = failure["gave"] if failure["kind"] == "wrong" and failure["gave"] != got else ""
    for name, value in (("input", failure["input"]), ("returned", gave), ("expected", expected), ("got", got)):
        if value:
            say(f"  {name:<9} {value}")
    if failure.get("snippet"):
        say(f"\n  as {failure['test'].partition('::')[0]}, line {failure['at']}, has it:", "dim")
        say(textwrap.indent("\n".join(failure["snippet"]), "    "), "dim", wrap=False)
    if printed := failure.get("printed", "").strip():
        say("\n  your file printed:")
        say(textwrap.indent(printed, "    "), wrap=False)


def check_all(desk: Desk, number: str | None, as_json: bool) -> int:
    """Every started exercise; as JSON every exercise there is, and nothing is remembered of it."""
    chosen = [desk.get(number)] if number else desk.all
    if not as_json:
        started = [one for one in chosen if desk.started(one)]
        return max([check_one(desk, one) for one in started] or [overview(desk)])
    desk.must_exist()
    report = []
    for one in chosen:
        outcome = judge(one, desk.file(one)) if desk.started(one) else {"passed": 0, "failure": {"kind": "not started"}}
        failure = {key: value for key, value in (outcome["failure"] or {}).items() if key not in ("snippet", "right")}
        report.append({"number": one.number, "session": one.session, "kind": one.kind, "title": one.title,
                       "passed": not failure, "behaviours": outcome["passed"], "failure": failure or None})
    solved = sum(one["passed"] for one in report)
    print(json.dumps({"passed": solved, "of": len(report), "exercises": report}, ensure_ascii=False, indent=1))
    return int(solved < len(report))


def hint(desk: Desk, exercise: Exercise) -> int:
    """One hint more than before; after the last one all of them again."""
    seen = desk.of(exercise).get("hints", 0)
    if not exercise.hints:
        raise Usage(f"{exercise.number} has no hints")
    chosen = exercise.hints[seen:seen + 1] or exercise.hints
    for number, text in enumerate(chosen, seen + 1 if len(chosen) == 1 and seen < len(exercise.hints) else 1):
        say(f"{exercise.number}  hint {number} of {len(exercise.hints)}:  {text}")
    desk.note(exercise.number, hints=min(seen + 1, len(exercise.hints)))
    return 0


def diff(desk: Desk, exercise: Exercise) -> int:
    """The learner's solution and the original; only when nothing can be spoiled any more."""
    known = desk.of(exercise)
    if not known.get("passed") and (left := TRIES - known.get("tries", 0)) > 0:
        raise Usage(f"{exercise.number} is not solved yet; the original is shown after {left} more "
                    f"tr{'ies' if left > 1 else 'y'}\n    python practice.py hint {exercise.number}")
    original = exercise.original.read_text(encoding="utf-8")
    own = desk.file(exercise).read_text("utf-8", "replace") if desk.started(exercise) else ""
    if exercise.kind == "predict":
        asked = ASKED[exercise.number]
        say(f"a run says: {asked.answer(trace(exercise.session))}\n  read from {asked.read}")
    elif exercise.kind == "find the bug":
        given = carved(exercise)
        say("the bug: - as it was given, + the original", "bold")
        show_lines(changes(given, FIRST_LINE.format(exercise.number) + unmarked(original)))
        say("\nyour mend: - as it was given, + yours", "bold")
        show_lines(changes(given, own) or ["(nothing was changed)"])
    else:
        try:
            mine = source_of(exercise.function, unmarked(own))
        except SyntaxError:
            mine = own
        theirs = source_of(exercise.function, unmarked(original))
        side_by_side(("yours", mine or "(the function is gone)"), ("the original", theirs))
    return 0


def changes(before: str, after: str) -> list[str]:
    """The lines that differ, each with - or +, without the rest."""
    return [line for line in difflib.unified_diff(before.split("\n"), after.split("\n"), lineterm="", n=0)
            if not line.startswith(("---", "+++", "@@"))]


def show_lines(lines: list[str]) -> None:
    """Changed lines in the colours of a diff."""
    for line in lines:
        say(line, "red" if line.startswith("-") else "green" if line.startswith("+") else "", wrap=False)


def side_by_side(*texts: tuple[str, str]) -> None:
    """Two pieces of Python beside each other where there is room, else one after the other."""
    width = shutil.get_terminal_size().columns
    if not sys.stdout.isatty() or width < 2 * max(len(line) for _, text in texts for line in text.split("\n")) + 5:
        for title, text in texts:
            say(f"── {title} " + "─" * (70 - len(title)), "bold")
            print(text + "\n", flush=True)
        return
    from rich.columns import Columns
    from rich.console import Console
    from rich.panel import Panel
    from rich.text import Text

    Console().print(Columns([Panel(Text(text), title=title, width=width // 2 - 1) for title, text in texts]))


def reset(desk: Desk, exercise: Exercise) -> int:
    """Begins an exercise anew; the old file is kept beside it."""
    if desk.started(exercise):
        path = desk.file(exercise)
        old = path.with_name(f"{path.name}.before-{time.strftime('%H%M%S')}")
        path.replace(old)
        say(f"your old file is {shown(old)}", "dim")
    desk.note(exercise.number, tries=0, hints=0, passed=False)
    return start(desk, exercise)


def watch(desk: Desk, exercise: Exercise) -> int:
    """Judges an exercise at each save, until Ctrl-C."""
    path, before = desk.file(exercise), None
    say(f"watching {shown(path)}; Ctrl-C ends", "dim")
    while True:
        try:
            found = path.stat()
        except FileNotFoundError:  # some editors write anew and rename
            found = None
        if found and (now := (found.st_mtime_ns, found.st_size)) != before:
            before = now
            say("checking …", "dim")
            if check_one(desk, exercise) == 0:
                return 0
            say(f"\nwatching {shown(path)}; Ctrl-C ends", "dim")
        time.sleep(POLL)


def run(desk: Desk, exercise: Exercise, more: list[str]) -> int:
    """Runs the learner's file as if it were the session."""
    if exercise.kind != "predict" and not desk.started(exercise):
        raise Usage(f"{exercise.number} is not started: python practice.py start {exercise.number}")
    path = exercise.original if exercise.kind == "predict" else desk.file(exercise)
    code = ("import sys; sys.path[0], path, name, *sys.argv[1:] = sys.argv[1:]; sys.argv[0] = path\n"
            "source = compile(open(path, encoding='utf-8').read(), path, 'exec')\n"
            "exec(source, {'__name__': '__main__', '__file__': name})")
    return subprocess.call([sys.executable, "-c", code, str(ROOT), str(path), str(exercise.original), *more])


def prove_all(desk: Desk) -> int:
    """Proves the exercises themselves, for those who write them and for the tests."""
    began, problems = time.monotonic(), verify(desk.all)
    for problem in problems:
        say(f"✗ {problem}", "red")
    seconds = f"{time.monotonic() - began:.1f} s"
    say(f"{len(desk.all)} exercises, {len(problems)} problems, {seconds}", "red" if problems else "green")
    return int(bool(problems))


def parse(words: list[str]) -> tuple[argparse.Namespace, list[str]]:
    """The command line; words that `run` hands on are kept apart."""
    commands = ("status", "start", "check", "hint", "diff", "reset", "watch", "run", "verify")
    parser = argparse.ArgumentParser(prog="practice.py", description=__doc__, allow_abbrev=False,
                                     formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("command", nargs="?", choices=commands, default="status", metavar="command",
                        help=", ".join(commands))
    parser.add_argument("number", nargs="?", help="6.1 for the first exercise of s06; all with check")
    parser.add_argument("answer", nargs="?", help="with check: the answer to a question")
    parser.add_argument("--json", action="store_true", help="with check: for every exercise, or the one named")
    parser.add_argument("--folder", type=Path, default=ROOT / "practice", help="where the learner's files are")
    at = words.index("run") + 2 if "run" in words else len(words)
    return parser.parse_args(words[:at]), words[at:]


def main(words: list[str]) -> int:
    """One command; returns the exit code: 0 done or right, 1 not yet, 2 usage."""
    given, more = parse(words)
    desk = Desk(given.folder, lambda text: say(text, "dim"))
    if given.command == "status":
        return overview(desk)
    if given.command == "verify":
        return prove_all(desk)
    if given.command == "check" and (given.json or given.number == "all"):
        return check_all(desk, None if given.number == "all" else given.number, given.json)
    if given.command in ("start", "run") and not given.number:
        if not (exercise := desk.next()):
            raise Usage("everything is solved; name one: python practice.py start 6.1")
    else:
        exercise = desk.get(given.number)
    if given.command == "check":
        return check_one(desk, exercise, given.answer)
    if given.command == "run":
        return run(desk, exercise, more)
    return {"start": start, "hint": hint, "diff": diff, "reset": reset, "watch": watch}[given.command](desk, exercise)


def safely(words: list[str]) -> int:
    """One command; whatever goes wrong is said in words."""
    try:
        return main(words)
    except Usage as error:
        say(str(error))
        return 2
    except BrokenPipeError:  # whoever read our output has left
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
    except KeyboardInterrupt:
        return 130
    except (SyntaxError, ValueError) as error:  # of a session or a mark in it
        say(f"the exercises cannot be read from the sessions: {error}")
    except OSError as error:
        say(f"{error.filename or 'the system'}: {error.strerror}")
    return 1


if __name__ == "__main__":
    for stream in (sys.stdout, sys.stderr):
        stream.reconfigure(encoding="utf-8", errors="replace")
    sys.exit(safely(sys.argv[1:]))
