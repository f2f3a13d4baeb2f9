"""search · which files lie below a folder and which of their lines match: ripgrep, or the same in Python

`list_files` names the files, `find_matches` searches them; both take a base folder and a glob and
speak of files by their name below it, with `/`. Files that a .gitignore names are left out inside
a git repository, as is `.git`; hidden files are not; links are not followed. ripgrep does the work
when it is installed, else `walk` and `python_matches` do it by the same rules.

Importing this file does nothing.
"""

import heapq
import itertools
import operator
import os
import re
import shutil
import subprocess
from collections.abc import Callable, Iterable, Iterator
from pathlib import Path

LINE_SHOWN = 500  # characters of a matching line
BOM = "\ufeff"  # the byte order mark that some editors put before UTF-8
UTF_16 = (b"\xff\xfe", b"\xfe\xff")  # how a file in UTF-16 begins
BINARY = "binary file matches"

Match = tuple[str, int, str]  # name below the base folder, line (0: the file as a whole), text


def glob_regex(pattern: str) -> re.Pattern:
    """A compiled glob: `*` and `?` stay within a folder, `**` crosses folders, `{a,b}` is either.

    A pattern without `/` is matched at any depth, as in ripgrep and .gitignore. Raises ValueError.
    """
    inner = pattern.removeprefix("./").lstrip("/") if "/" in pattern else f"**/{pattern}"
    tokens = {"**/": "(?:.*/)?", "**": ".*", "*": "[^/]*", "?": "[^/]", "{": "(?:", "}": ")", ",": "|"}
    depth, out = 0, ""
    for part in re.split(r"(\\.|\*\*/|\*\*|\*|\?|\[[!^]?[^]]+\]|\{|\}|,)", inner):
        depth += (part == "{") - (part == "}")
        if part.startswith("[") and len(part) > 2:
            body = part[1:-1].replace("!", "^", 1) if part[1] == "!" else part[1:-1]
            out += "(?!/)[" + re.sub(r"[\[\\&|~]", r"\\\g<0>", body) + "]"
        elif part.startswith("\\") or part == "," and not depth:
            out += re.escape(part[-1])
        else:
            out += tokens.get(part, re.escape(part))
    try:
        return re.compile(out, re.DOTALL)
    except re.error as error:
        raise ValueError(f"{pattern} is not a valid glob: {error}") from error


def name_filter(glob: str) -> Callable[[str], object]:
    """A function that tells whether a name fits a glob; raises ValueError when the glob is not valid."""
    return str if glob in ("**", "**/*", "*") else glob_regex(glob).fullmatch  # a name is never blank


# ---------------------------------------------------------------------------------- lines


def find_matches(pattern: str, base: Path, glob: str, ignore_case: bool,
                 limit: int) -> tuple[int, list[Match]]:
    """How often a regular expression matches in a folder or file, and the first `limit` matches in order.

    A binary file counts once. Raises ValueError when the pattern or the glob is not valid.
    """
    if re.search(r"\n|(?<!\\)(\\\\)*\\n", pattern):
        raise ValueError("a pattern cannot hold a line break, lines are searched one by one")
    search = ripgrep_matches if shutil.which("rg") else python_matches
    fits = str if base.is_file() else name_filter(glob)
    total, shown = 0, []
    for name, matches in itertools.groupby(search(pattern, base, glob, ignore_case), operator.itemgetter(0)):
        if fits(name):
            count, first = first_matches(matches, limit)
            total += count
            shown += first
        if len(shown) > 20 * limit:
            shown = sorted(shown)[:limit]
    return total, sorted(shown)[:limit]


def first_matches(matches: Iterable[Match], limit: int) -> tuple[int, list[Match]]:
    """How many matches one file has, and the first of them; of a binary file only the fact."""
    first, count, last = [], 0, None
    for last in matches:
        count += 1
        if count <= limit:
            first.append(last)
    return (1, [last]) if last[1] == 0 else (count, first)


def shorten(text: str) -> str:
    return text if len(text) <= LINE_SHOWN else text[:LINE_SHOWN] + " [...]"


# Only .gitignore is obeyed: with a person's own ignore files the same call would differ between machines
RIPGREP = ["rg", "--no-config", "--no-messages", "--hidden", "--no-ignore-dot", "--no-ignore-exclude",
           "--no-ignore-global", "--glob", "!.git", "--null"]
MATCHING = ["--line-number", "--with-filename", "--no-heading", "--color=never", "--binary", "--crlf",
            "--max-columns=2000", "--max-columns-preview"]


def ripgrep_command(base: Path, glob: str, *options: str) -> list[str]:
    """ripgrep over the files a glob can name. A --glob would override .gitignore, a type does not."""
    last = "*" if base.is_file() else glob.rsplit("/", 1)[-1]
    plain = re.fullmatch(r"[\w.*?-]*\w[\w.*?-]*", last) and "**" not in last
    kind = ["--type-add", f"pick:{last}", "--type", "pick"] if plain else []
    return [*RIPGREP, *kind, *options]


def ripgrep_matches(pattern: str, base: Path, glob: str, ignore_case: bool) -> Iterator[Match]:
    """Every match that ripgrep finds, file by file."""
    folded = ["--ignore-case"] * ignore_case
    command = ripgrep_command(base, glob, *MATCHING, *folded, "--regexp", pattern, "--", str(base))
    pipe, nothing = subprocess.PIPE, subprocess.DEVNULL
    process = subprocess.Popen(command, stdin=nothing, stdout=pipe, stderr=pipe)
    start = len(os.path.join(base if base.is_dir() else base.parent, ""))
    try:
        for name, line, text in ripgrep_lines(process.stdout):
            yield os.fsdecode(name)[start:].replace(os.sep, "/"), line, text
        if process.wait() > 1 and (message := process.stderr.read().decode("utf-8", "replace").strip()):
            raise ValueError(message)
    finally:
        process.kill()
        process.communicate()


def ripgrep_lines(stream: Iterable[bytes]) -> Iterator[tuple[bytes, int, str]]:
    """The lines `NAME NUL NUMBER:TEXT` and `NAME: binary file matches ...`; a name may hold line breaks."""
    held = b""
    for raw in stream:
        name, null, rest = (held + raw).partition(b"\0")
        held = b""
        if null:
            number, _, text = rest.partition(b":")
            yield name, int(number), shorten(text.decode("utf-8", "replace").rstrip("\r\n"))
        elif binary := re.fullmatch(rb"(.*): binary file matches.*\n", name, re.DOTALL):
            yield binary[1], 0, BINARY
        else:
            held = name


def python_matches(pattern: str, base: Path, glob: str, ignore_case: bool) -> Iterator[Match]:
    """The same without ripgrep."""
    try:
        regex = re.compile(pattern, re.IGNORECASE * ignore_case | re.MULTILINE)
    except re.error as error:
        raise ValueError(f"{pattern} is not a valid regular expression: {error}") from error
    folder = base.parent if base.is_file() else base
    for name in [base.name] if base.is_file() else filter(name_filter(glob), walk(base)):
        try:
            with open(f"{folder}/{name}", "rb", buffering=0) as stream:
                data = stream.read()
        except OSError:
            continue
        text = data.decode("utf-16" if data[:2] in UTF_16 else "utf-8", "replace")
        text = text.removeprefix(BOM).replace("\r\n", "\n").removesuffix("\n")
        if not data or not regex.search(text):
            continue
        if "\0" in text:
            yield name, 0, BINARY
            continue
        for number, line in enumerate(text.split("\n"), 1):
            if regex.search(line):
                yield name, number, shorten(line.rstrip("\r"))


# ---------------------------------------------------------------------------------- files


def list_files(base: Path, glob: str, limit: int) -> tuple[int, list[str]]:
    """How many regular files below a folder fit a glob, and the names of the first `limit` in order.

    Raises ValueError when the glob is not valid.
    """
    fits = name_filter(glob)
    names = list(filter(fits, ripgrep_files(base, glob) if shutil.which("rg") else walk(base)))
    return len(names), heapq.nsmallest(limit, names)


def ripgrep_files(base: Path, glob: str) -> list[str]:
    """The names, in no order, of the files below a folder, among them all that fit the glob."""
    command = ripgrep_command(base, glob, "--files")
    done = subprocess.run(command, cwd=base, stdin=subprocess.DEVNULL, capture_output=True)  # there names are short
    return os.fsdecode(done.stdout).replace(os.sep, "/").split("\0")[:-1]


# The rules of one .gitignore: where the names it speaks of begin in a path, one expression with a
# group for each rule, last rule first, and for each group whether the rule is negated.
IgnoreFile = tuple[int, re.Pattern, list[bool]]


def walk(base: Path) -> Iterator[str]:
    """What ripgrep would list."""
    rules = None
    for folder in reversed(base.parents):
        rules = ignore_rules(str(folder), rules)
    waiting = [("", rules)]
    while waiting:
        inside, rules = waiting.pop()
        folder = os.path.join(base, inside)
        rules = ignore_rules(folder, rules)
        try:
            entries = list(os.scandir(folder))
        except OSError:
            continue
        for entry in entries:
            is_folder = entry.is_dir(follow_symlinks=False)
            if entry.name == ".git" or rules and ignored(rules, folder + entry.name, is_folder):
                continue
            if is_folder:
                waiting.append((f"{inside}{entry.name}/", rules))
            elif entry.is_file(follow_symlinks=False):
                yield inside + entry.name


def ignore_rules(folder: str, above: list[IgnoreFile] | None) -> list[IgnoreFile] | None:
    """The rules that count in a folder, given those of the folder above; None outside a repository."""
    nested = os.path.exists(os.path.join(folder, ".git"))  # into which no rule from outside reaches
    rules = [] if nested else above
    try:
        with open(os.path.join(folder, ".gitignore"), encoding="utf-8-sig", errors="surrogateescape") as file:
            lines = [re.sub(r"(?<!\\)\s+$", "", line) for line in file if not line.startswith("#")]
    except OSError:  # there is none
        return rules
    sources, negated = [], []
    for line in reversed(lines if rules is not None else []):
        try:
            source = glob_regex(line.removeprefix("!").removesuffix("/")).pattern
        except ValueError:
            continue
        sources.append(f"({'d' if line.endswith('/') else '.'}{source})")
        negated.append(line.startswith("!"))
    if not sources:
        return rules
    return [*rules, (len(os.path.join(folder, "")), re.compile("|".join(sources), re.DOTALL), negated)]


def ignored(rules: list[IgnoreFile], path: str, is_folder: bool) -> bool:
    """Whether a .gitignore names a path: the innermost file decides, and in it the last rule that fits."""
    for start, regex, negated in reversed(rules):
        if found := regex.fullmatch(("d" if is_folder else "f") + path[start:]):
            return not negated[found.lastindex - 1]
    return False
