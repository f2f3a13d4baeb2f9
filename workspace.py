"""workspace · what the base tools do to the world: bash, read, write, edit, revert, grep, glob

A `Workspace(root)` is the only way by which tools reach files and processes. Every path is taken
relative to its root, links are followed, and what ends outside is refused; the process's current
folder plays no part, so several agents can work in different trees at once. The methods named
like tools *are* the tools: `core.Tool.of` takes their docstring as the description the model
reads and their annotated parameters as the input schema.

    shell        a command in its own session, its output kept as head and tail
    files        snapshots, atomic writes, locks
    Workspace    the seven tools; the details of read, edit, grep and glob in small functions below it

Importing this file does nothing.
"""

import atexit
import contextlib
import difflib
import hashlib
import os
import secrets
import shutil
import signal
import stat
import subprocess
import sys
import threading
import time
import typing
from dataclasses import dataclass
from pathlib import Path

from search import BOM, find_matches, list_files

OUTPUT_LIMIT = 30_000  # characters of one result; Claude Code's BASH_MAX_OUTPUT_LENGTH
SECRET_VARIABLES = ("ANTHROPIC_API_KEY", "ANTHROPIC_AUTH_TOKEN", "ANTHROPIC_CUSTOM_HEADERS")


class ToolError(Exception):
    """A failure the model can act on; its text becomes the tool's result."""


class Interrupted(KeyboardInterrupt):
    """Ctrl-C while a tool was running. Its text says what the tool had done so far."""


# ---------------------------------------------------------------------------------- shell

GRACE = 0.2  # seconds to wait for more output when the shell has ended and a child of it lives on
DRAIN = 2  # seconds when none does: the rest is on its way, unless a child left the process group
CHUNK = 1 << 20  # bytes of a pipe and of one read; Linux's own 64 KB make `cat` of a large file twice as slow
BULK, NAP = 4096, 1e-4  # after a read of so many bytes wait so many seconds, so that the pipe fills
FORCE = getattr(signal, "SIGKILL", signal.SIGTERM)
NEUTRAL = {"PAGER": "cat", "GIT_PAGER": "cat", "MANPAGER": "cat", "EDITOR": "true", "VISUAL": "true",
           "GIT_EDITOR": "true", "GIT_SEQUENCE_EDITOR": "true", "GIT_TERMINAL_PROMPT": "0",
           "TERM": "dumb", "PYTHONUNBUFFERED": "1"}


class HeadTail:
    """Keeps the first and the last bytes of a stream of any length, `limit` in all, and counts the rest.

    The usual limit leaves room in a result for the count and the exit code.
    """

    def __init__(self, limit: int = OUTPUT_LIMIT - 200):
        self.half, self.size = limit // 2, 0  # bytes
        self.head, self.tail = bytearray(), b""

    def add(self, chunk: bytes | memoryview) -> None:
        """Takes the next bytes; nothing of `chunk` is held on to, so that a reader may use it again."""
        rest = chunk
        if room := self.half - len(self.head):
            self.head += chunk[:room]
            rest = chunk[room:]
        if rest:
            self.tail = (self.tail + rest[-self.half:])[-self.half:]
        self.size += len(chunk)  # last, so that `text` in another thread never counts what it can see

    def text(self) -> str:
        """What was kept, as text; bytes that are not UTF-8 become the replacement character."""
        left_out = self.size - len(self.head) - len(self.tail)
        if left_out <= 0:
            return (self.head + self.tail).decode("utf-8", "replace")
        head, tail = self.head.decode("utf-8", "replace"), self.tail.decode("utf-8", "replace")
        return f"{head}\n[... {left_out:,} bytes left out ...]\n{tail}"


class Shell:
    """One shell command in a session of its own, with empty standard input.

    A thread starts it, because Ctrl-C strikes only the main thread: no instant exists in which
    a process runs that nobody knows. `exited` is set when the shell has ended, even if a child
    it left behind still holds the pipe; what is left behind ends with the program.
    """

    living: typing.ClassVar[set["Shell"]] = set()  # of which anything may be left

    def __init__(self, command: str, folder: Path):
        self.command, self.folder, self.output = command, folder, HeadTail()
        self.process: subprocess.Popen | None = None
        self.failure: Exception | None = None
        self.exited, self.killed = threading.Event(), False

    def start(self) -> "Shell":
        threading.Thread(target=self._run, daemon=True).start()
        return self

    def _run(self) -> None:
        shell = shutil.which("bash") or shutil.which("sh")
        environment = {k: v for k, v in os.environ.items() if k not in SECRET_VARIABLES} | NEUTRAL
        try:
            Shell.living.add(self)
            if not threading.main_thread().is_alive():  # the program ends; end_shells may be over
                raise RuntimeError("the program is ending")
            atexit.unregister(end_shells)  # once is enough, and importing this file must do nothing
            atexit.register(end_shells)
            self.process = subprocess.Popen(
                [shell, "-c", self.command] if shell else self.command, shell=not shell, cwd=self.folder,
                stdin=subprocess.DEVNULL, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, bufsize=0,
                env=environment, start_new_session=True)
            if self.killed:  # while it was being started
                self._signal(FORCE)
            reader = threading.Thread(target=self._drain, daemon=True)
            reader.start()
            self.process.wait()
            reader.join(GRACE if self._signal(0) else DRAIN)
        except (OSError, ValueError, RuntimeError) as error:  # no such folder; a NUL; no more threads
            self.failure = error
            if self.process:
                self._signal(FORCE)
        finally:
            if not (self.process and self._signal(0)):
                Shell.living.discard(self)
            self.exited.set()

    def _drain(self) -> None:
        """Reads all output; much of it in large pieces, since to be woken at each write is what costs."""
        capacity, chunk = 0, memoryview(bytearray(CHUNK))
        with contextlib.suppress(ImportError, AttributeError, OSError):  # not on every system
            import fcntl

            capacity = fcntl.fcntl(self.process.stdout, fcntl.F_SETPIPE_SZ, CHUNK)
        while size := self.process.stdout.readinto(chunk):
            self.output.add(chunk[:size])
            if BULK <= size < capacity:
                time.sleep(NAP)
        self.process.stdout.close()

    def _signal(self, number: int) -> bool:
        """Sends a signal to all that the command started; False when nothing of it is left."""
        if not hasattr(os, "killpg"):  # Windows
            if number:
                subprocess.run(["taskkill", "/T", "/F", "/PID", str(self.process.pid)], capture_output=True)
            return self.process.poll() is None
        groups = session_groups(self.process.pid)
        for group in groups:
            with contextlib.suppress(ProcessLookupError, PermissionError):
                os.killpg(group, number)
        return bool(groups)

    def kill(self) -> None:
        """Ends the command and everything it started: asked politely, then after 0.5 s by force."""
        self.killed = True
        try:
            if self.process and self._signal(signal.SIGTERM):
                self.exited.wait(0.5)
        finally:  # also when a second Ctrl-C strikes
            if self.process:
                self._signal(FORCE)
        self.exited.wait(0.5)


def end_shells(folder: Path | None = None) -> None:
    """At the end of the program, or of a folder: all commands in it are asked at once, and after 0.5 s forced."""
    shells = [shell for shell in list(Shell.living) if not folder or shell.folder.is_relative_to(folder)]
    for number in (signal.SIGTERM, FORCE):
        for shell in shells:
            shell.killed = True
            if shell.process:
                shell._signal(number)
        deadline = time.monotonic() + 0.5
        for shell in shells:
            shell.exited.wait(max(0.0, deadline - time.monotonic()))


def session_groups(session: int) -> list[int]:
    """The process groups in a session: a shell with job control, or timeout(1), makes more than one.

    The shell's own comes first: if it were signalled last, it could begin its next command before.
    """
    if os.path.isdir("/proc/self"):
        pids = filter(str.isdigit, os.listdir("/proc"))
    else:
        pids = subprocess.run(["ps", "-A", "-o", "pid="], capture_output=True, text=True).stdout.split()
    groups = set()
    for pid in map(int, pids):
        with contextlib.suppress(ProcessLookupError, PermissionError):
            if os.getsid(pid) == session:
                groups.add(os.getpgid(pid))
    return sorted(groups, key=lambda group: (group != session, group))


# ---------------------------------------------------------------------------------- files

READ_LINES, LINE_CHARACTERS = 2_000, 2_000  # of one `read`
SHOWN_MATCHES, SHOWN_FILES = 250, 500
COUNTED_SIZE = 32 << 20  # bytes; in a larger file lines are not counted just to name their number
LOCK_SECONDS = 30  # a lock is held for milliseconds; longer means that its holder hangs
CHANGES = threading.Lock()  # one change at a time: of edits of a file in two threads only one would stay


@dataclass(frozen=True)
class Snapshot:
    """A file before one change (`data` None: it did not exist) and the digest of what was written."""

    data: bytes | None
    mode: int | None
    written: str


def digest(data: bytes) -> str:
    return hashlib.sha256(data).hexdigest()


def atomic_write(path: Path, data: bytes, mode: int | None = None) -> None:
    """Replaces a file's content in one step: a reader sees the old bytes or the new, never half.

    Mode and owner stay (or the mode is `mode`); a new file follows the umask. A hard-linked file
    is written in place instead, since a rename would part it from its other names.
    """
    path.parent.mkdir(parents=True, exist_ok=True)
    before = path.stat() if path.exists() else None
    mode = stat.S_IMODE(before.st_mode) if mode is None and before else mode
    target = path if before and before.st_nlink > 1 else path.with_name(f".{secrets.token_hex(6)}.tmp")
    try:
        with open(target, "wb" if target == path else "xb") as file:
            file.write(data)
        if before and hasattr(os, "geteuid") and os.geteuid() == 0:  # nobody else may give files away
            os.chown(target, before.st_uid, before.st_gid)
        if mode is not None:
            os.chmod(target, mode)
        os.replace(target, path)
    except OSError as error:  # nobody knows the temporary file: name the one that was meant
        raise OSError(error.errno, error.strerror, str(path)) from None
    finally:
        if target != path:
            target.unlink(missing_ok=True)


@contextlib.contextmanager
def locked(path: Path, seconds: float = LOCK_SECONDS) -> typing.Iterator[None]:
    """Holds `<path>.lock` alone, among threads and processes; TimeoutError after `seconds`.

    The operating system frees it when its holder dies, however it dies; the file itself stays.
    """
    path.parent.mkdir(parents=True, exist_ok=True)
    deadline = time.monotonic() + seconds
    with open(f"{path}.lock", "ab") as file:  # opened anew, so that it excludes other threads too
        while not _take_lock(file.fileno()):
            if time.monotonic() > deadline:
                raise TimeoutError(f"{path} has been locked by another process for {seconds:g} s")
            time.sleep(0.002)  # looks are paid by the holder: with more, all processes get less done
        yield  # closing the file frees the lock


def _take_lock(descriptor: int) -> bool:
    try:
        import fcntl

        fcntl.flock(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except ImportError:  # Windows
        import msvcrt

        try:
            msvcrt.locking(descriptor, msvcrt.LK_NBLCK, 1)
        except OSError:
            return False
    except BlockingIOError:
        return False
    return True


class Workspace:
    """The base tools, all below one root folder, whatever the process's current folder is."""

    def __init__(self, root: str | Path):
        self.root = Path(root).resolve()
        self.snapshots: dict[Path, list[Snapshot]] = {}
        self.seen: dict[Path, tuple] = {}  # the signature that a file had when the model last saw it
        self.shells: set[Shell] = set()  # commands of bash that run now; another thread may kill them

    # paths ------------------------------------------------------------------

    def path(self, name: str) -> Path:
        """The real path of a name inside the workspace, links followed; outside is a ToolError."""
        try:
            path = (self.root / name).resolve()
            if not path.is_relative_to(self.root):
                raise ToolError(f"{name} is outside the workspace {self.root}; paths must stay inside it")
            path.stat()
        except (FileNotFoundError, NotADirectoryError):
            pass  # it may be about to be written
        except (OSError, RuntimeError, ValueError) as error:  # a loop of links, a NUL, too long
            reason = getattr(error, "strerror", None) or error
            raise ToolError(f"{name[:200]!r} is not a usable path: {reason}") from error
        return path

    def name(self, path: Path | str) -> str:
        """A path as the model knows it: relative to the root, with `/`."""
        return os.path.relpath(path, self.root).replace(os.sep, "/")

    def prefix(self, folder: Path) -> str:
        """What to put before a name in a folder to make it relative to the root."""
        return "" if folder == self.root else self.name(folder) + "/"

    def file(self, name: str, tool: str) -> Path:
        """The path of an existing regular file; anything else is named for what it is."""
        path = self.path(name)
        if not path.exists():
            names = os.listdir(path.parent)[:1000] if path.parent.is_dir() else []
            near = difflib.get_close_matches(path.name, names, 3)
            hint = f"; did you mean {', '.join(near)}?" if near else ""
            raise ToolError(f"{tool}: {name} does not exist{hint}")
        mode = path.stat().st_mode
        if not stat.S_ISREG(mode):
            kind = "a folder" if stat.S_ISDIR(mode) else "a pipe, socket or device"
            raise ToolError(f"{tool}: {name} is {kind}, not a regular file")
        return path

    # bash -------------------------------------------------------------------

    def bash(self, command: str, timeout: float = 120) -> str:
        """Run a shell command in the workspace folder and return its output, stdout and stderr mixed.

        Use it for programs, tests, git and anything the other tools do not do. Every call starts
        in the workspace folder; cd and variables do not carry over. There is no keyboard input.
        A non-zero exit code is shown as [exit N]. The command and what it started are killed after
        `timeout` seconds (120 if not given, at most 600). Of long output the head and tail are kept.
        """
        if not timeout > 0:
            raise ToolError("bash: timeout must be more than 0 seconds")
        if not self.root.is_dir():
            raise ToolError(f"bash: the folder {self.root} no longer exists; ask the user to restore it")
        shell = Shell(command, self.root)
        self.shells.add(shell)
        try:
            shell.start()  # a Ctrl-C that strikes just before a wait is noticed only behind it, so waits are short
            in_time = any(shell.exited.wait(0.1) for _ in range(int(min(timeout, 600) / 0.1) + 1))
            if not in_time:
                shell.kill()
            output = shell.output.text().rstrip("\n")
        except KeyboardInterrupt as stop:
            shell.kill()
            raise Interrupted(shell.output.text()) from stop
        finally:
            self.shells.discard(shell)
        if shell.failure:
            raise ToolError(f"bash: could not start the command: {shell.failure}")
        if not in_time:
            late = f"[timed out after {min(timeout, 600):g} s; the command was killed]"
            raise ToolError(f"{output}\n{late}".lstrip("\n"))
        code = shell.process.returncode
        ending = f"[killed by signal {-code}]" if code < 0 else f"[exit {code}]" if code else ""
        return "\n".join(filter(None, [output, ending])) or "(no output)"

    # read -------------------------------------------------------------------

    def read(self, path: str, start_line: int = 1, end_line: int | None = None) -> str:
        """Read a text file. Each line comes as its number, a tab and its text.

        Give start_line and end_line (both counted from 1, inclusive) for a part of a large file.
        At most 2,000 lines come at once, and long lines are cut; the last line says what was left.
        """
        file = self.file(path, "read")
        if start_line < 1 or (end_line is not None and end_line < start_line):
            raise ToolError("read: start_line counts from 1 and end_line must not be before it")
        last = min(end_line or sys.maxsize, start_line + READ_LINES - 1)
        with open(file, "rb") as stream:
            if b"\0" in stream.read(8192):
                size = file.stat().st_size
                raise ToolError(f"read: {path} is a binary file ({size:,} bytes); use bash to look at it")
            stream.seek(0)
            skipped = skip_lines(stream, start_line - 1)
            lines, number, room = [], start_line, OUTPUT_LIMIT - LINE_CHARACTERS - 400
            while number <= last and room > 0 and (line := cut_line(stream)) is not None:
                lines.append(f"{number}\t{line.removeprefix(BOM) if number == 1 else line}")
                room -= len(lines[-1]) + 1
                number += 1
            self.seen[file] = signature(file)
            if not lines:
                what = f"has {skipped:,} lines; there is no line {start_line:,}" if skipped else "is empty"
                return f"({path} {what})"
            more = "" if end_line and number > end_line else rest_of_file(stream, number, file.stat().st_size)
        return "\n".join(lines) + more

    # write, edit, revert ------------------------------------------------------

    def write(self, path: str, content: str) -> str:
        """Create a file, or replace all of an existing one; folders are made as needed.

        To change a part of a file use edit. An existing file keeps its mode, line endings and
        byte order mark.
        """
        with CHANGES:
            file = self.path(path)
            if not file.exists():
                return self._store(file, content, f"created {path}")
            now = signature(self.file(path, "write"))
            if self.seen.get(file, now) != now:
                raise ToolError(
                    f"write: {path} was changed by someone else since you last saw it; read it first")
            old = file.read_bytes()
            if old.startswith(BOM.encode()):
                content = BOM + content.removeprefix(BOM)
            if b"\r\n" in old and old.count(b"\r\n") == old.count(b"\n") and "\r\n" not in content:
                content = content.replace("\n", "\r\n")
            return self._store(file, content, f"updated {path}")

    def edit(self, path: str, old_text: str, new_text: str) -> str:
        """Replace one piece of text in a file by another.

        old_text must be in the file exactly once, letter by letter, white space included (without
        the line numbers that read shows). Give enough surrounding lines to make it unique.
        """
        with CHANGES:
            file = self.file(path, "edit")
            text = file.read_bytes().decode("utf-8", "surrogateescape")
            if "\0" in text:
                raise ToolError(f"edit: {path} is a binary file")
            old, new = fit_line_endings(text, old_text, new_text)
            where = occurrences(text, old)
            if old == new or len(where) != 1:
                raise ToolError(f"edit: {edit_problem(path, text, old, new, where)}")
            start = where[0]
            changed = text[:start] + new + text[start + len(old):]
            first = text.count("\n", 0, start) + 1
            lines = changed.replace("\r\n", "\n").split("\n")[first - 1:first + new.count("\n")]
            numbered = [f"{number}\t{line[:LINE_CHARACTERS]}" for number, line in enumerate(lines, first)]
            shown = "\n".join(numbered[:40] + [f"[{len(numbered) - 40} more lines]"] * (len(numbered) > 40))
            return f"{self._store(file, changed, f'edited {path}')}\n{shown}"

    def revert(self, path: str) -> str:
        """Undo the last write or edit of a file made in this session, byte for byte.

        A file that the change created is deleted. Changes made by bash are not covered.
        """
        with CHANGES:
            file = self.path(path)
            if not self.snapshots.get(file):
                raise ToolError(f"revert: {path} was not changed by write or edit in this session")
            last = self.snapshots[file][-1]
            if (digest(file.read_bytes()) if file.is_file() else None) != last.written:
                raise ToolError(f"revert: {path} was changed by someone else since; it is left as it is")
            if last.data is None:
                file.unlink()
            else:
                atomic_write(file, last.data, last.mode)
                self.seen[file] = signature(file)
            self.snapshots[file].pop()
            return f"reverted {path}: " + ("it did not exist before, so it is gone" if last.data is None
                                           else f"{len(last.data):,} bytes as before the last change")

    def _store(self, file: Path, text: str, what: str) -> str:
        """Writes a file, keeping what it was before; returns `what` ("edited a.py") and the new size."""
        data = text.encode("utf-8", "surrogateescape")
        before = file.read_bytes() if file.exists() else None
        mode = None if before is None else stat.S_IMODE(file.stat().st_mode)
        if mode is not None and not mode & 0o222:
            raise ToolError(f"not {what}: the file is read-only; ask the user whether its mode may change")
        try:
            atomic_write(file, data)
        except OSError as error:
            raise ToolError(f"not {what}: {error.strerror or error}") from error
        self.snapshots.setdefault(file, []).append(Snapshot(before, mode, digest(data)))
        self.seen[file] = signature(file)
        lines = text.count("\n") + (not text.endswith("\n") and bool(text))
        return f"{what}: {lines:,} lines, {len(data):,} bytes"

    # grep, glob ---------------------------------------------------------------

    def grep(self, pattern: str, path: str = ".", glob: str = "**", ignore_case: bool = False) -> str:
        """Search file contents for a regular expression; matches come as path:line:text, sorted.

        path limits the search to a folder or file, glob to names such as *.py or src/**/*.ts.
        Files named by .gitignore and the .git folder are skipped. At most 250 matches are shown.
        """
        base = self.path(path)
        if not base.is_dir():
            self.file(path, "grep")
        try:
            total, found = find_matches(pattern, base, glob, ignore_case, SHOWN_MATCHES)
        except ValueError as error:
            raise ToolError(f"grep: {error}") from error
        start = self.prefix(base if base.is_dir() else base.parent)
        lines = [f"{start}{name}:" + (f"{line}:{text}" if line else f" {text}") for name, line, text in found]
        return shown_of(lines, total, "matches", f"(no matches for {pattern} in {path})")

    def glob(self, pattern: str, path: str = ".") -> str:
        """Find files by name: *.py (at any depth), src/**/*.ts, docs/*.md. Sorted, at most 500.

        Files named by .gitignore and the .git folder are skipped; hidden files are not.
        """
        base = self.path(path)
        if not base.is_dir():
            raise ToolError(f"glob: {path} is not a folder")
        try:
            total, names = list_files(base, pattern, SHOWN_FILES)
        except ValueError as error:
            raise ToolError(f"glob: {error}") from error
        shown = [self.prefix(base) + name for name in names]
        return shown_of(shown, total, "files", f"(no files match {pattern} in {path})")


# the details of read ----------------------------------------------------------


def signature(path: Path) -> tuple:
    """What tells one state of a file from another without reading it."""
    found = path.stat()
    return found.st_mtime_ns, found.st_size, found.st_ino


def skip_lines(stream: typing.BinaryIO, count: int) -> int:
    """Moves past `count` lines in bounded memory; returns how many there were, at most `count`."""
    passed, ends_open = 0, False
    while passed < count and (block := stream.read(1 << 20)):
        here = block.count(b"\n")
        ends_open = not block.endswith(b"\n")
        if passed + here >= count:
            position = -1
            for _ in range(count - passed):
                position = block.index(b"\n", position + 1)
            stream.seek(position + 1 - len(block), os.SEEK_CUR)
            return count
        passed += here
    return passed + ends_open


def cut_line(stream: typing.BinaryIO) -> str | None:
    """The next line as text without its end, cut when long; None at the end of the file."""
    line = stream.readline(LINE_CHARACTERS * 4)
    if not line:
        return None
    left = 0
    while not line.endswith(b"\n") and (rest := stream.readline(1 << 20)):
        left += len(rest)
        if rest.endswith(b"\n"):
            break
    text = line.decode("utf-8", "replace").rstrip("\r\n")
    left += max(0, len(text) - LINE_CHARACTERS)
    return text if not left else f"{text[:LINE_CHARACTERS]} [... about {left:,} more on this line]"


def rest_of_file(stream: typing.BinaryIO, number: int, size: int) -> str:
    """A closing line when the file goes on at line `number`, with the total if it is cheap to count."""
    if stream.tell() >= size:
        return ""
    if size - stream.tell() > COUNTED_SIZE:
        return f"\n[the file goes on, {size:,} bytes in all; next: start_line={number}]"
    total = number - 1 + skip_lines(stream, sys.maxsize)
    return f"\n[the file has {total:,} lines; next: start_line={number}]"


# the details of edit ------------------------------------------------------------


def fit_line_endings(text: str, old: str, new: str) -> tuple[str, str]:
    """old and new with the line endings of the place they are meant for; exact text goes first."""
    crlf = text.count("\r\n") * 2 > text.count("\n")
    if old in text:
        return old, to_crlf(new) if crlf and "\n" not in old else new
    return (to_crlf(old), to_crlf(new)) if to_crlf(old) in text else (old, new)


def to_crlf(text: str) -> str:
    return text.replace("\r\n", "\n").replace("\n", "\r\n")


def occurrences(text: str, part: str) -> list[int]:
    """Every position of a part, overlapping ones too; none for an empty part."""
    found, position = [], text.find(part) if part else -1
    while position >= 0:
        found.append(position)
        position = text.find(part, position + 1)
    return found


def edit_problem(path: str, text: str, old: str, new: str, where: list[int]) -> str:
    """Why an edit cannot be made, and what to do."""
    if not old:
        return "old_text is empty; give the text to replace, or use write for a whole file"
    if old == new:
        return "old_text and new_text are the same; nothing to change"
    if where:
        lines = ", ".join(str(text.count("\n", 0, position) + 1) for position in where[:10])
        return f"old_text occurs {len(where)} times in {path} (lines {lines}); add surrounding lines to make it unique"
    if " ".join(old.split()) in " ".join(text.split()):
        return f"old_text is in {path} only with other white space; read it again and copy it exactly"
    return f"old_text is not in {path}; read it again and copy it exactly, without the line numbers"


# the details of grep and glob ------------------------------------------------------


def shown_of(lines: list[str], total: int, what: str, none: str) -> str:
    """As many lines as fit into one result, and the count of what was left out."""
    kept, room = [], OUTPUT_LIMIT - 200
    for line in lines:
        room -= len(line) + 1
        if room < 0:
            break
        kept.append(line)
    more = f"\n[{len(kept)} of {total:,} {what} shown; narrow the search]" if len(kept) < total else ""
    return "\n".join(kept) + more if kept else none
