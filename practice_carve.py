"""practice_carve · exercises cut out of the sessions, so that neither can drift from the other

`exercises()` finds them: fill in (a mark in a function), find the bug, predict (practice_table).
`carved(exercise)` is the file a learner starts with.
"""

import ast
import functools
import itertools
import re
import textwrap
from dataclasses import dataclass
from pathlib import Path

import practice_table

ROOT = Path(__file__).resolve().parent
MARK = re.compile(r"\s*# exercise (\d+\.\d+): (.*)")
COMMENT = re.compile(r"\s*# ?(.*)")
FIRST_LINE = "# exercise {}: python practice.py check\n"  # tells whose file this is


@dataclass(frozen=True)
class Exercise:
    """One exercise; `function` is the qualified name of what is to be written, "" of the other kinds."""

    number: str
    session: str
    kind: str
    task: str
    hints: tuple[str, ...]
    tests: tuple[str, ...] = ()
    function: str = ""

    @property
    def order(self) -> tuple[int, ...]:
        """Sorts 10.1 behind 9.1."""
        return tuple(map(int, self.number.split(".")))

    @property
    def original(self) -> Path:
        """The session's own file."""
        return ROOT / f"{self.session}.py"

    @property
    def title(self) -> str:
        """What is to be done, in a few words."""
        return {"fill in": f"write {self.function}", "find the bug": "find the bug", "predict": "predict"}[self.kind]


def exercises() -> list[Exercise]:
    """Every exercise of every session, in order."""
    found = [exercise for path in sorted(ROOT.glob("s[0-9][0-9]_*.py")) for exercise in marked(path)]
    found += [Exercise(number, bug.session, "find the bug", bug.symptom, bug.hints, bug.tests)
              for number, bug in practice_table.BUGS.items()]
    found += [Exercise(number, asked.session, "predict", asked.text, asked.hints)
              for number, asked in practice_table.ASKED.items()]
    return sorted(found, key=lambda exercise: exercise.order)


def marked(path: Path) -> list[Exercise]:
    """The exercises that are marked in a session: task and hints, each over one or more lines."""
    source, found = path.read_text(encoding="utf-8"), []
    lines = source.split("\n")
    for start, line in enumerate(lines):
        if mark := MARK.match(line):
            texts = [mark[2]]
            for comment in lines[start + 1:mark_end(lines, start)]:
                text = COMMENT.match(comment)[1]
                if text.startswith("hint:"):
                    texts.append(text.removeprefix("hint:").strip())
                else:
                    texts[-1] += " " + text.strip()
            name, _ = function_at(source, start + 1)
            tests = practice_table.TESTS.get(mark[1]) or tests_naming(path.stem, name)
            found.append(Exercise(mark[1], path.stem, "fill in", texts[0], tuple(texts[1:]), tests, name))
    return found


def mark_end(lines: list[str], start: int) -> int:
    """Index of the line behind the mark at `start` and the comments that belong to it."""
    end = start + 1
    while COMMENT.match(lines[end]) and not MARK.match(lines[end]):
        end += 1
    return end


@functools.cache  # parsing a session takes longer than all the rest
def functions(source: str) -> dict[str, ast.FunctionDef]:
    """The functions and methods of a module by their qualified names, without those inside functions."""
    found = {}
    for node in ast.parse(source).body:
        inner = node.body if isinstance(node, ast.ClassDef) else [node]
        prefix = f"{node.name}." if isinstance(node, ast.ClassDef) else ""
        found |= {prefix + item.name: item for item in inner
                  if isinstance(item, (ast.FunctionDef, ast.AsyncFunctionDef))}
    return found


def function_at(source: str, line: int) -> tuple[str, ast.FunctionDef]:
    """Name and node of the function around a line."""
    for name, node in functions(source).items():
        if node.lineno <= line <= node.end_lineno:
            return name, node
    raise ValueError(f"line {line}: an exercise must be marked inside a function or method")


def tests_naming(session: str, function: str) -> tuple[str, ...]:
    """The tests of a session in which a function's name occurs, shortest first."""
    source = (ROOT / "tests" / f"test_{session}.py").read_text(encoding="utf-8")
    word = re.compile(rf"\b{function.rpartition('.')[2]}\b")
    named = [node for name, node in functions(source).items()
             if name.startswith("test_") and word.search(ast.unparse(node.body))]
    named.sort(key=lambda node: node.end_lineno - node.lineno)
    return tuple(node.name.removeprefix("test_") for node in named)


def carved(exercise: Exercise, too_much: bool = False) -> str:
    """The session's source as a learner gets it: without a body, or with a bug (or mended too much)."""
    source = exercise.original.read_text(encoding="utf-8")
    if exercise.kind == "find the bug":
        bug = practice_table.BUGS[exercise.number]
        if (times := source.count(bug.old)) != 1:
            raise ValueError(f"{bug.old!r} occurs {times} times in {exercise.session}.py, not once")
        return FIRST_LINE.format(exercise.number) + unmarked(source.replace(bug.old, bug.too_much if too_much else bug.new))
    source = unmarked(source, exercise.number)
    node, lines = functions(source)[exercise.function], source.split("\n")
    start = next(n for n, line in enumerate(lines) if MARK.match(line))
    top = node.body[0].end_lineno if ast.get_docstring(node) else start
    mark = lines[start:mark_end(lines, start)]
    body = [*itertools.takewhile(lambda line: "# hint:" not in line, mark),  # hints are given one by one
            " " * (node.col_offset + 4) + f'raise NotImplementedError("exercise {exercise.number}")']
    return FIRST_LINE.format(exercise.number) + "\n".join([*lines[:top], *body, *lines[node.end_lineno:]])


def unmarked(source: str, keep: str = "") -> str:
    """The source without the marks and hints of exercises, except those of one."""
    lines = source.split("\n")
    for start in reversed([n for n, line in enumerate(lines) if MARK.match(line)]):
        if MARK.match(lines[start])[1] != keep:
            del lines[start:mark_end(lines, start)]
    return "\n".join(lines)


def question(exercise: Exercise) -> str:
    """The file in which a learner answers a prediction."""
    text = textwrap.fill(exercise.task, 78)
    return (f"exercise {exercise.number}: predict, then check. What is played, and with what, is DEMO at the\n"
            f"end of {exercise.session}.py.\n\n{text}\n\nanswer: \n")


def source_of(function: str, text: str) -> str:
    """A function's source, dedented; "" when there is none of this name."""
    node = functions(text).get(function)
    return textwrap.dedent("\n".join(text.split("\n")[node.lineno - 1:node.end_lineno])) if node else ""


def callers(exercise: Exercise) -> list[str]:
    """Which functions of the session use the one of an exercise."""
    word = re.compile(rf"\b{exercise.function.rpartition('.')[2]}\(")
    return [name for name, node in functions(exercise.original.read_text(encoding="utf-8")).items()
            if name != exercise.function and word.search(ast.unparse(node.body))]
