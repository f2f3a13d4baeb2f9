"""docs/source.py · what the lessons take from the source, by name and by reading, never by running it"""

import ast
import functools
import io
import re
import textwrap
import tokenize
from pathlib import Path

ROOT = Path(__file__).resolve().parent.parent


class Wrong(Exception):
    """Why a mark cannot be filled in."""


def path_of(name: str) -> Path:
    """The file that `s06`, `s06_compact` or `core` stands for."""
    found = sorted(ROOT.glob(f"{name}_*.py" if re.fullmatch(r"s\d\d", name) else f"{name}.py"))
    if not found:
        raise Wrong(f"there is no file {name}")
    return found[0]


@functools.cache
def source_of(path: Path) -> tuple[str, ast.Module]:
    text = path.read_text(encoding="utf-8")
    return text, ast.parse(text)


def find(name: str) -> tuple[Path, ast.AST]:
    """The file and the node of `module.name` or `module.Class.method`."""
    module, *inner = name.split(".")
    path = path_of(module)
    node = source_of(path)[1]
    for part in inner:
        node = next((child for child in node.body if part in names_of(child)), None)
        if node is None or not inner:
            raise Wrong(f"{path.name} has no {'.'.join(inner)}")
    return path, node


def names_of(node: ast.AST) -> list[str]:
    """What a statement defines: a function, a class, or the targets of an assignment."""
    if isinstance(node, (ast.Assign, ast.AnnAssign)):
        targets = node.targets if isinstance(node, ast.Assign) else [node.target]
        return [leaf.id for target in targets for leaf in ast.walk(target) if isinstance(leaf, ast.Name)]
    return [getattr(node, "name", "")]


def link(path: Path, node: ast.AST, up: str, text: str) -> str:
    return f"[{text}]({up}{path.name}#L{node.lineno}-L{node.end_lineno})"


def lines_of(path: Path, node: ast.AST, last: int = 0) -> str:
    """The lines of a node, without the marks of exercises, which the lesson lists in a place of their own."""
    first = min([node.lineno, *(decorator.lineno for decorator in getattr(node, "decorator_list", []))])
    lines = source_of(path)[0].split("\n")[first - 1:last or node.end_lineno]
    inside = {number for one in exercises_in(path) for number in one["lines"]}
    return textwrap.dedent("\n".join(line for number, line in enumerate(lines, first) if number not in inside))


@functools.cache
def exercises_in(path: Path) -> list[dict]:
    """The exercises marked in a file: number, the function they are in, the lines of their marks."""
    text, tree = source_of(path)
    functions = [node for node in ast.walk(tree) if isinstance(node, ast.FunctionDef)]
    found, following = [], 0
    for token in tokenize.generate_tokens(io.StringIO(text).readline):
        line = token.start[0]
        if token.type != tokenize.COMMENT:
            continue
        if start := re.match(r"# exercise (\d+\.\d+): ", token.string):
            around = [node for node in functions if node.lineno <= line <= node.end_lineno]
            found.append({"number": start[1], "lines": [line], "node": max(around, key=lambda node: node.lineno)})
        elif found and line == following and token.line.lstrip().startswith("#"):  # more of the task, then hints
            found[-1]["lines"].append(line)
        else:
            continue
        following = line + 1
    return found


@functools.cache
def code_lines(path: Path) -> int:
    """Lines with code: neither blank, nor comment, nor docstring."""
    text, tree = source_of(path)
    owners = (ast.Module, ast.ClassDef, ast.FunctionDef)
    docs = [node.body[0] for node in ast.walk(tree) if isinstance(node, owners) and ast.get_docstring(node)]
    silent = {tokenize.COMMENT, tokenize.NL, tokenize.NEWLINE, tokenize.INDENT, tokenize.DEDENT, tokenize.ENDMARKER}
    tokens = tokenize.generate_tokens(io.StringIO(text).readline)
    return len({line for token in tokens if token.type not in silent for line in range(token.start[0], token.end[0] + 1)}
               - {line for doc in docs for line in range(doc.lineno, doc.end_lineno + 1)})


def imports_of(path: Path) -> dict[str, list[str]]:
    """By module of this repository, the names that a file takes from it."""
    found: dict[str, set[str]] = {}
    ours = {other.stem for other in ROOT.glob("*.py")}
    nodes = [*ast.walk(source_of(path)[1])]
    whole = ours & {alias.name for node in nodes if isinstance(node, ast.Import) for alias in node.names}
    for node in nodes:
        if isinstance(node, ast.ImportFrom) and node.module in ours:
            found.setdefault(node.module, set()).update(alias.name for alias in node.names)
        if isinstance(node, ast.Attribute) and isinstance(node.value, ast.Name) and node.value.id in whole:
            found.setdefault(node.value.id, set()).add(node.attr)
    return {module: sorted(found[module]) for module in sorted(found)}
