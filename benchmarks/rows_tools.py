"""Rows: the base tools against the programs that do the same."""

import shutil
import subprocess
from collections.abc import Iterator
from pathlib import Path

from measure import Line, Sizes, compared, fresh, in_turn, limited, peak_memory, row, shown, timed


@row
def bash_row(sizes: Sizes, folder: Path) -> Iterator[Line]:
    """A command with a lot of output, against the same command writing to a pipe that `cat` reads.

    Whoever keeps output must read it from a pipe, and `cat` does no more than that. Against
    `> /dev/null`, where nothing is copied at all, the ratio is for information.
    """
    text_file(folder / "output.txt", sizes.output)
    sequence, lines = f"seq 1 {sizes.output * 118_000}", f"yes line | head -c {sizes.output}M"
    for command in (sequence, lines, "cat output.txt"):
        used, ours, null, pipe = fresh(bash_figures, command, str(folder), sizes.runs)
        yield compared(f"bash {command}", ours, pipe, 1.3, "| cat > /dev/null")
        yield compared("  the same to nowhere", ours, null, None, "> /dev/null")
        yield Line("  peak memory above idle", f"{used:.1f} MB", goal="<= 60 MB", met=used <= 60)
    (folder / "output.txt").unlink()


def bash_figures(command: str, folder: str, runs: int) -> tuple:
    from workspace import Workspace

    workspace = Workspace(folder)
    workspace.bash("true")
    idle = peak_memory()
    workspace.bash(command)
    used = max(peak_memory() - idle, 0)
    shell = [lambda end=end: timed(lambda: subprocess.run(["bash", "-c", command + end], cwd=folder))
             for end in (" > /dev/null", " | cat > /dev/null")]
    return used, *in_turn(runs, lambda: timed(lambda: workspace.bash(command)), *shell)


def text_file(path: Path, megabytes: int) -> int:
    """Writes a text of lines of 64 bytes; returns how many there are."""
    block = b"".join(b"%63d\n" % number for number in range(1 << 14))
    with open(path, "wb") as file:
        for _ in range(megabytes):
            file.write(block)
    return megabytes << 14


@row
def read_row(sizes: Sizes, folder: Path) -> Iterator[Line]:
    """A few lines of a very large file."""
    lines = text_file(folder / "large.txt", sizes.file)
    for where, first, goal in (("start", 1, 0.010), ("middle", lines // 2, None)):
        used, seconds = fresh(read_figures, str(folder), first, sizes.runs)
        what = f"read 10 lines at the {where} of {sizes.file} MB"
        yield limited(what, seconds, goal) if goal else Line(what, shown(seconds))
        yield Line("  peak memory above idle", f"{used:.1f} MB", goal="<= 10 MB", met=used <= 10)
    (folder / "large.txt").unlink()


def read_figures(folder: str, first: int, runs: int) -> tuple[float, list[float]]:
    from workspace import Workspace

    workspace, idle = Workspace(folder), peak_memory()
    seconds = in_turn(runs, lambda: timed(lambda: workspace.read("large.txt", first, first + 9)))[0]
    return max(peak_memory() - idle, 0), seconds


@row
def grep_row(sizes: Sizes, folder: Path) -> Iterator[Line]:
    """grep against ripgrep itself, and the Python fallback against both."""
    yield from search_rows("grep", sizes, folder, [("needle", "**"), ("import", "**"), ("needle", "*.py")])


@row
def glob_row(sizes: Sizes, folder: Path) -> Iterator[Line]:
    """glob against ripgrep and fd listing the same names."""
    yield from search_rows("glob", sizes, folder, [("*.py",), ("**/*",)])


def search_rows(tool: str, sizes: Sizes, folder: Path, searches: list[tuple]) -> Iterator[Line]:
    if not shutil.which("rg"):
        yield Line(tool, "ripgrep (rg) is not installed")
        return
    tree, programs = source_tree(folder / "tree", sizes.files), folder / "bin"
    programs.mkdir(exist_ok=True)
    if shutil.which("git") and not (programs / "git").exists():
        (programs / "git").symlink_to(shutil.which("git"))
    for search in searches:
        what, them = f"{tool} {' '.join(search)}, {sizes.files:,} files", rivals(tool, tree, *search)
        found = fresh(search_figures, tool, str(tree), search, them, sizes.runs)
        for name, seconds in zip(them, found[1:]):
            yield compared(what, found[0], seconds, 1.3 if name == "rg" else None, name)
        slow = fresh(search_figures, tool, str(tree), search, {}, sizes.runs, PATH=str(programs))
        yield compared("  the same without ripgrep", slow[0], found[1], 5, "rg")
    if tool == "glob" and len(them) == 1:
        yield Line("glob against fd", "fd is not installed")


def rivals(tool: str, tree: Path, pattern: str, glob: str = "**") -> dict[str, list[str]]:
    """The commands that do the same search, by name."""
    import search

    if tool == "grep":
        return {"rg": search.ripgrep_command(tree, glob, *search.MATCHING, "--regexp", pattern, "--", str(tree))}
    fd = shutil.which("fd") or shutil.which("fdfind")
    them = {"rg": search.ripgrep_command(tree, pattern, "--files", "--", str(tree))}
    if fd:
        them["fd"] = [fd, "--type", "f", "--hidden", "--glob", pattern.removeprefix("**/"), str(tree)]
    return them


def search_figures(tool: str, tree: str, search: list, them: dict[str, list[str]],
                   runs: int) -> list[list[float]]:
    from workspace import Workspace

    ours, options = getattr(Workspace(tree), tool), dict(zip(["glob"], search[1:]))
    commands = [lambda command=command: timed(lambda: subprocess.run(command, capture_output=True))
                for command in them.values()]
    return in_turn(runs, lambda: timed(lambda: ours(search[0], **options)), *commands)


def source_tree(tree: Path, files: int) -> Path:
    """A git work tree of small source files in nested folders, of which one in twenty is ignored."""
    if tree.exists():
        return tree
    text = "".join(f"def function_{number}(value):\n    return value + {number}\n\n" for number in range(15))
    for number in range(files):
        place = tree / f"part{number // 2500}" / f"folder{number // 50 % 50}"
        if number % 50 == 0:
            place.mkdir(parents=True)
        name = f"file{number}.{'log' if number % 20 == 0 else 'md' if number % 3 else 'py'}"
        (place / name).write_text(f"import os\n{text}" + "needle\n" * (number % 1000 == 7))
    (tree / ".gitignore").write_text("*.log\nbuild/\n")
    subprocess.run(["git", "init", "--quiet", str(tree)]) if shutil.which("git") else None
    return tree
