"""The house: who imports whom, how large a file may be, and what importing it may do."""

import ast
import functools
import io
import os
import re
import subprocess
import sys
import tokenize
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parent.parent
MODULES = sorted(path for path in ROOT.glob("*.py"))
SESSIONS = [path for path in MODULES if re.match(r"s\d\d_", path.name)]
LARGER = r"s(09|1[0-2]|2[1-3])_"  # sessions with more moving parts
BUDGETS = {"core": 450, "workspace": 420, "search": 200, "console": 300, "screen": 220, "keyboard": 40,
           "s01_agent_loop": 110,
           "offline": 450, "offline_rules": 300, "offline_script": 350, "practice": 300, "practice_table": 300}
MAY_IMPORT = {  # of this repository; sessions: see the test
    "search": set(), "workspace": {"search"}, "trouble": set(), "core": {"trouble", "workspace", "offline"}, "screen": {"core"},
    "keyboard": set(), "arguments": {"core", "screen"}, "console": {"core", "screen", "keyboard", "arguments"},
    "offline_rules": set(), "offline_script": {"offline_rules"}, "offline": {"offline_rules", "offline_script"},
    "practice_table": set(), "practice_carve": {"practice_table"}, "practice_probe": set(),
    "practice_desk": {"core", "practice_carve"},
    "practice_judge": {"practice_carve", "practice_probe", "practice_table"},
    "practice": {"core", "practice_carve", "practice_desk", "practice_judge", "practice_table"}}
LONGEST_FUNCTION = 45  # lines with its docstring


def ids(path):
    return path.stem


@functools.cache
def tree(path):
    return ast.parse(path.read_text(encoding="utf-8"))


def functions(path):
    return [node for node in ast.walk(tree(path)) if isinstance(node, (ast.FunctionDef, ast.AsyncFunctionDef))]


def docstring_lines(path):
    """Line numbers that belong to docstrings."""
    owners = (ast.Module, ast.ClassDef, ast.FunctionDef, ast.AsyncFunctionDef)
    found = (node.body[0] for node in ast.walk(tree(path)) if isinstance(node, owners) and ast.get_docstring(node))
    return {line for first in found for line in range(first.lineno, first.end_lineno + 1)}


def code_lines(path):
    """Lines with code: neither blank, nor comment, nor docstring."""
    silent = {tokenize.COMMENT, tokenize.NL, tokenize.NEWLINE, tokenize.INDENT, tokenize.DEDENT, tokenize.ENDMARKER}
    tokens = tokenize.generate_tokens(io.StringIO(path.read_text(encoding="utf-8")).readline)
    return len({line for token in tokens if token.type not in silent
                for line in range(token.start[0], token.end[0] + 1)} - docstring_lines(path))


def imports(path):
    """Names of this repository's modules that a file imports, anywhere in it."""
    ours = {module.stem for module in MODULES}
    found = set()
    for node in ast.walk(tree(path)):
        if isinstance(node, ast.Import):
            found |= {alias.name for alias in node.names}
        if isinstance(node, ast.ImportFrom):
            found.add(node.module)
    return found & ours


@pytest.mark.parametrize("path", MODULES, ids=ids)
def test_a_file_keeps_its_budget(path):
    budget = BUDGETS.get(path.stem) or (260 if re.match(LARGER, path.name) else 200)
    assert code_lines(path) <= budget


@pytest.mark.parametrize("path", MODULES, ids=ids)
def test_imports_only_point_down(path):
    if path in SESSIONS:
        earlier = {other.stem for other in SESSIONS if other.name < path.name}
        assert imports(path) <= {"core", "console"} | earlier
    elif path.stem in MAY_IMPORT:
        assert imports(path) == MAY_IMPORT[path.stem]


def depth(path):
    below = [ROOT / f"{name}.py" for name in imports(path) if re.match(r"s\d\d_", name)]
    return 1 + max(map(depth, below), default=0)


@pytest.mark.parametrize("path", SESSIONS, ids=ids)
def test_a_session_stands_on_no_more_than_three_others_in_a_row(path):
    assert depth(path) <= 4


@pytest.mark.parametrize("path", SESSIONS, ids=ids)
def test_the_loop_exists_once(path):
    runs = [node for node in ast.walk(tree(path)) if isinstance(node, ast.ClassDef)
            and "Agent" in ast.unparse(node).partition(":")[0]
            for item in node.body if isinstance(item, ast.FunctionDef) and item.name == "run"]
    assert len(runs) == (path.stem == "s01_agent_loop")


@pytest.mark.parametrize("path", SESSIONS, ids=ids)
def test_a_session_opens_with_what_a_reader_needs(path):
    text = ast.get_docstring(tree(path))
    assert re.match(rf"{path.name[:3]} · \S", text)
    positions = [text.find(f"\n{name}") for name in ("Pain", "Idea", "Change", "Cost", "Try", "Look for", "Builds on")]
    assert -1 not in positions and positions == sorted(positions)


@pytest.mark.parametrize("path", SESSIONS, ids=ids)
def test_a_session_ends_with_its_demo_and_one_call_of_main(path):
    *_, demo, guard = tree(path).body
    assert ast.unparse(demo).startswith("DEMO = ") and ast.unparse(guard).startswith("if __name__ == '__main__':\n    main(")


@pytest.mark.parametrize("path", [path for path in MODULES if path.stem != "console"], ids=ids)
def test_only_the_console_prints_and_asks(path):
    own_program = path.stem in ("offline", "practice")  # they speak for themselves when run
    called = {node.func.id for node in ast.walk(tree(path)) if isinstance(node, ast.Call) and isinstance(node.func, ast.Name)}
    assert own_program or not called & {"print", "input"}


@pytest.mark.parametrize("path", MODULES, ids=ids)
def test_functions_are_short(path):
    assert [f.name for f in functions(path) if f.end_lineno - f.lineno >= LONGEST_FUNCTION] == []


def test_no_function_is_written_twice():
    seen = {}
    for path in MODULES:
        for function in functions(path):
            body = [part for part in function.body if not (isinstance(part, ast.Expr) and isinstance(part.value, ast.Constant))]
            text = "\n".join(map(ast.unparse, body))
            if text.count("\n") >= 2:
                assert text not in seen, f"{path.stem}.{function.name} repeats {seen[text]}"
                seen[text] = f"{path.stem}.{function.name}"


@pytest.mark.parametrize("path", MODULES, ids=ids)
def test_public_functions_and_classes_say_what_they_give(path):
    public = [node for node in tree(path).body if isinstance(node, (ast.ClassDef, ast.FunctionDef))
              and not node.name.startswith("_")]
    longer = [node for node in public if node.end_lineno - node.lineno > 8]
    assert [node.name for node in longer if not ast.get_docstring(node)] == []


def test_importing_has_no_effect_and_takes_no_sdk(tmp_path):
    """I5: an empty environment, an empty folder, and nothing read, written, started or said."""
    program = f"""
import os, sys, threading
sys.path.insert(0, {str(ROOT)!r})
opened = []
sys.addaudithook(lambda event, args: opened.append((event, args)) if event in (
    "socket.connect", "socket.bind", "subprocess.Popen", "os.putenv", "os.mkdir", "os.rename") or
    event == "open" and isinstance(args[1], str) and set(args[1]) & set("wax+") else None)
before = dict(os.environ)
for name in {[path.stem for path in MODULES]!r}:
    __import__(name)
heavy = {{"anthropic", "httpx2", "rich", "dotenv", "yaml", "pydantic"}} & sys.modules.keys()

assert not heavy, heavy
assert not opened, opened
assert dict(os.environ) == before and threading.active_count() == 1
import core
assert core.listeners == [] and core._clients == {{}}
"""
    environment = {"SYSTEMROOT": os.environ["SYSTEMROOT"]} if os.name == "nt" else {}
    done = subprocess.run([sys.executable, "-B", "-c", program], cwd=tmp_path, env=environment, capture_output=True,
                          text=True)
    assert (done.returncode, done.stdout, done.stderr) == (0, "", "")
    assert list(tmp_path.iterdir()) == []


def test_every_module_is_listed_for_installation():
    listed = re.search(r"py-modules = \[(.*?)\]", (ROOT / "pyproject.toml").read_text(encoding="utf-8"), re.DOTALL)[1]
    assert set(re.findall(r'"(\w+)"', listed)) == {path.stem for path in MODULES}


def test_the_readme_is_short_and_names_every_session():
    text = (ROOT / "README.md").read_text(encoding="utf-8")
    assert len(text.splitlines()) <= 150
    assert all(f"`{path.name}`" in text for path in SESSIONS)
