"""The table of faults (FAULTS.md) and the tests agree, and what one session alone cannot show of a fault."""

import ast
import functools
import json
import os
import re
import subprocess
import sys
from pathlib import Path

TESTS = Path(__file__).resolve().parent
ROOT = TESTS.parent
ROW = re.compile(r"^\| (B\d{3}) \| ([^|]+) \| ([^|]+) \|$", re.MULTILINE)


def rows():
    """The table: number -> the tests named for it, as file::test."""
    found = ROW.findall((TESTS / "FAULTS.md").read_text(encoding="utf-8"))
    return {number: set(re.findall(r"`tests/(\w+\.py::\w+)`", where)) for number, _, where in found}


@functools.cache
def all_tests():
    """Every test there is, as file::test -> its docstring."""
    return {f"{path.name}::{node.name}": ast.get_docstring(node) or "" for path in TESTS.glob("test_*.py")
            for node in ast.parse(path.read_text(encoding="utf-8")).body
            if isinstance(node, ast.FunctionDef) and node.name.startswith("test_")}


def test_every_test_in_the_table_exists():
    named = {test for of_one in rows().values() for test in of_one}
    assert named - all_tests().keys() == set()


def test_every_number_in_a_docstring_is_in_the_table_with_that_test():
    table = rows()
    assert [(number, test) for test, text in all_tests().items() for number in re.findall(r"\bB\d{3}\b", text)
            if test not in table.get(number, ())] == []


def test_the_table_is_in_order_and_each_row_has_a_test_or_a_reason():
    text = (TESTS / "FAULTS.md").read_text(encoding="utf-8")
    numbers = [number for number, _, _ in ROW.findall(text)]
    assert len(numbers) == text.count("\n| B") and numbers == sorted(set(numbers))
    assert all("`tests/" in where or "not here yet" in where for _, _, where in ROW.findall(text))


# what stands before the conversation ---------------------------------------------------------

BUILD_ALL = """
import importlib, json, sys
sys.path.insert(0, sys.argv[1])
import core
for session, maker in json.loads(sys.argv[3]).items():
    make = getattr(importlib.import_module(session), maker)
    agent = make(core.Workspace(sys.argv[2]), permissions=core.Permissions("yes"), model="none")
    print(json.dumps([session, agent.request([])]))
"""


def makers():
    """The name of what each session gives to `main`."""
    last = {path.stem: ast.parse(path.read_text(encoding="utf-8")).body[-1] for path in sorted(ROOT.glob("s[0-9]*.py"))}
    return {session: guard.body[-1].value.args[0].id for session, guard in last.items()}


def test_what_stands_before_the_conversation_is_the_same_in_every_process(workspace):
    """B136: another order of tools or skills, as a set would give it, would break every cached prefix."""
    for name in ("one", "two", "three", "four"):
        folder = workspace.root / "skills" / name
        folder.mkdir(parents=True)
        (folder / "SKILL.md").write_text(f"---\nname: {name}\ndescription: Does {name}.\n---\nBody\n")
    (workspace.root / "CLAUDE.md").write_text("Use tabs.\n")
    command = [sys.executable, "-c", BUILD_ALL, str(ROOT), str(workspace.root), json.dumps(makers())]
    both = [subprocess.Popen(command, stdout=subprocess.PIPE, env={**os.environ, "PYTHONHASHSEED": seed}) for seed in "12"]
    first, second = (process.communicate(timeout=60)[0].splitlines() for process in both)
    assert first == second and len(first) == len(makers()) > 10
