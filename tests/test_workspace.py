"""workspace and search: paths, bash, read, write, edit, revert, grep, glob, on real files and processes."""

import contextlib
import itertools
import os
import shutil
import signal
import socket
import stat
import subprocess
import sys
import threading
import time
from pathlib import Path

import pytest

from search import list_files
from talk import until
from workspace import HeadTail, Interrupted, Shell, ToolError, Workspace, atomic_write, end_shells, session_groups

ROOT = Path(__file__).parent.parent
POSIX = pytest.mark.skipif(os.name != "posix", reason="needs POSIX files or processes")
GIT = pytest.mark.skipif(not shutil.which("git"), reason="git is not installed")
PYTHON = f"'{sys.executable}'"


def put(workspace: Workspace, name: str, data: bytes | str = b"", mode: int | None = None) -> Path:
    """Writes a file below the workspace, as somebody else would."""
    path = workspace.root / name
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_bytes(data if isinstance(data, bytes) else data.encode())
    if mode is not None:
        path.chmod(mode)
    return path


def alive(pid: int) -> bool:
    """Whether a process runs; one that waits to be reaped does not."""
    try:
        os.kill(pid, 0)
    except ProcessLookupError:
        return False
    state = subprocess.run(["ps", "-o", "stat=", "-p", str(pid)], capture_output=True, text=True).stdout
    return bool(state.strip()) and not state.strip().startswith("Z")


def pid_in(path: Path) -> int:
    """The process id that a command writes into a file."""
    until(lambda: path.exists() and path.read_text().strip())
    return int(path.read_text())


def press_ctrl_c() -> None:
    """As the terminal does it: the signal goes to the main thread."""
    signal.pthread_kill(threading.main_thread().ident, signal.SIGINT)


@contextlib.contextmanager
def refused(*words: str):
    """Expects a ToolError of one line that holds the words."""
    with pytest.raises(ToolError) as failure:
        yield
    for word in words:
        assert word in str(failure.value)
    assert len(str(failure.value)) < 1_000


# ------------------------------------------------------------------------------- paths


@POSIX
@pytest.mark.parametrize("name", ["../x", "/etc/passwd", "a/../../x", "link/x", "out.txt", "gone"])
def test_a_path_that_ends_outside_is_refused_by_every_tool(name, workspace):
    """B110"""
    outside = workspace.root.parent / "outside"
    outside.mkdir()
    (outside / "old.txt").write_text("old\n")
    (workspace.root / "link").symlink_to(outside)
    (workspace.root / "out.txt").symlink_to(outside / "old.txt")
    (workspace.root / "gone").symlink_to(outside / "new.txt")
    for call in (lambda: workspace.read(name), lambda: workspace.write(name, "x"),
                 lambda: workspace.edit(name, "old", "new"), lambda: workspace.revert(name),
                 lambda: workspace.grep("o", name), lambda: workspace.glob("*", name)):
        with refused("outside the workspace"):
            call()
    assert [path.name for path in outside.iterdir()] == ["old.txt"]
    assert (outside / "old.txt").read_text() == "old\n"


@POSIX
@pytest.mark.parametrize("name", ["a\0b", "x" * 5_000, "\ud800", "loop", "loop/x"], ids=ascii)
def test_a_name_that_cannot_be_a_path_is_refused_in_words(name, workspace):
    (workspace.root / "loop").symlink_to("loop")
    for call in (lambda: workspace.read(name), lambda: workspace.write(name, "x")):
        with refused("not a usable path"):
            call()


@POSIX
@pytest.mark.parametrize("name", ["-n", "a\nb", "ünï", " ", "~", "$(touch x)", "a:1:b", "*"])
def test_odd_names_are_plain_names(name, workspace):
    workspace.write(name, "one\n")
    workspace.edit(name, "one", "two")
    assert workspace.read(name) == "1\ttwo" and workspace.grep("two", name) == f"{name}:1:two"
    assert [path.name for path in workspace.root.iterdir()] == [name]


def test_a_missing_file_is_named_with_what_is_near(workspace):
    put(workspace, "notes.txt")
    with refused("note.txt does not exist", "did you mean notes.txt"):
        workspace.read("note.txt")


def test_an_absolute_path_is_fine_and_the_current_folder_plays_no_part(workspace, tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    path = put(workspace, "a.txt", "here\n")
    assert workspace.read(str(path)) == workspace.read("a.txt") == "1\there"


# ------------------------------------------------------------------------------- bash


@POSIX
def test_a_command_runs_in_the_root_and_its_output_is_the_result(workspace):
    assert workspace.bash("pwd; echo err >&2") == f"{workspace.root}\nerr"


@POSIX
@pytest.mark.parametrize("command, result", [
    ("exit 3", "[exit 3]"), ("echo a; exit 1", "a\n[exit 1]"), ("true", "(no output)"),
    ("kill -9 $$", "[killed by signal 9]"), ("nosuchprogram 2>/dev/null", "[exit 127]"),
    ("printf ' x\\n\\n'", " x"), ("cat; echo end", "end")])
def test_the_exit_code_is_shown_when_it_is_not_zero(command, result, workspace):
    assert workspace.bash(command) == result


@POSIX
@pytest.mark.parametrize("command", [
    "sleep 60 & echo $! > pid; printf hi", "nohup sleep 60 & echo $! > pid; printf hi",
    "(sleep 60 & echo $! > pid); printf hi", "set -m; sleep 60 & echo $! > pid; printf hi"])
def test_a_background_child_does_not_hold_the_result_back(command, workspace):
    """B006"""
    started = time.monotonic()
    assert workspace.bash(command, timeout=30) == "hi"
    assert time.monotonic() - started < 10
    os.kill(pid_in(workspace.root / "pid"), signal.SIGKILL)


@POSIX
def test_a_background_child_can_go_on_printing_without_harm(workspace):
    """B006"""
    result = workspace.bash("(echo $BASHPID > pid; while sleep 0.01; do seq 1000; done) & printf hi")
    assert result.startswith("hi")
    os.kill(pid_in(workspace.root / "pid"), signal.SIGKILL)


@POSIX
def test_all_of_the_output_arrives_when_many_commands_end_at_once(workspace):
    """B006: the wait for the rest of the output is not so short that a busy machine loses it."""
    results, commands = [], 100
    threads = [threading.Thread(target=lambda: results.append(workspace.bash("seq 1000; echo end")))
               for _ in range(commands)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert len(results) == commands and len(set(results)) == 1 and results[0].endswith("1000\nend")


@POSIX
def test_bytes_that_are_not_utf8_become_replacement_characters(workspace):
    """B007"""
    result = workspace.bash("printf 'left\\351\\350right\\n'; seq 40000")
    assert result.startswith("left\ufffd\ufffdright") and result.endswith("40000")


@POSIX
def test_output_of_any_size_is_kept_as_head_and_tail_in_bounded_memory(workspace):
    """B009"""
    shell = Shell("echo first; yes | head -c 100M; echo last; exit 3", workspace.root).start()
    assert shell.exited.wait(60) and shell.process.returncode == 3
    text = shell.output.text()
    assert text.startswith("first\n") and text.endswith("last\n") and len(text) <= 30_000
    assert f"[... {100 * 2**20 + 11 - shell.output.half * 2:,} bytes left out ...]" in text
    assert len(shell.output.head) + len(shell.output.tail) <= 30_000


def test_head_and_tail_meet_exactly_at_the_limit():
    for size in (9, 10, 11):
        kept = HeadTail(10)
        for byte in range(size):
            kept.add(b"%d" % (byte % 10))
        whole = "0123456789"[:size]
        assert kept.text() == (whole if size <= 10 else "01234\n[... 1 bytes left out ...]\n67890")


@POSIX
@pytest.mark.parametrize("command", [
    f"echo printed; {PYTHON} -c 'import os, time; print(os.getpid()); time.sleep(60)' > pid; touch late",
    "echo printed; timeout 50 sh -c 'echo $$ > pid; sleep 60'; touch late",
    "echo printed; trap '' TERM; echo $$ > pid; sleep 60; touch late",
    "echo printed; (trap '' TERM; echo $BASHPID > pid; sleep 60; touch late) & wait"])
def test_at_the_timeout_everything_is_killed_and_what_was_printed_is_kept(command, workspace):
    """B011, B104"""
    with refused("printed", "timed out after 0.4 s"):
        workspace.bash(command, timeout=0.4)
    until(lambda: not alive(pid_in(workspace.root / "pid")))
    assert not (workspace.root / "late").exists()


@POSIX
def test_a_shell_is_signalled_before_what_it_waits_for(workspace):
    """Else it would begin its next command in between."""
    shells = [Shell("timeout 50 sleep 60; touch late", workspace.root).start() for _ in range(6)]
    until(lambda: all(shell.process for shell in shells))
    pids = [shell.process.pid for shell in shells]
    until(lambda: all(len(session_groups(pid)) == 2 for pid in pids))
    assert [next(iter(session_groups(pid))) for pid in pids] == pids
    end_shells()
    assert all(shell.exited.wait(5) for shell in shells) and not (workspace.root / "late").exists()


@POSIX
def test_the_timeout_holds_when_a_background_child_has_the_pipe(workspace):
    """B006"""
    with refused("timed out"):
        workspace.bash("sleep 60 & echo $! > pid; sleep 60", timeout=0.3)
    until(lambda: not alive(pid_in(workspace.root / "pid")))


@pytest.mark.parametrize("timeout", [0, -1, float("nan")])
def test_a_timeout_must_be_positive(timeout, workspace):
    with refused("timeout"):
        workspace.bash("true", timeout)


@POSIX
@GIT
def test_pagers_editors_and_prompts_do_not_wait_for_a_key(workspace, monkeypatch):
    """B012"""
    for name in ("PAGER", "GIT_PAGER", "EDITOR", "VISUAL", "GIT_EDITOR"):
        monkeypatch.setenv(name, "sleep 60; true")
    workspace.bash("git init -q . && git config user.email a@b && git config user.name a && "
                   "git config core.pager 'sleep 60' && git config core.editor 'sleep 60' && "
                   "for n in 1 2 3; do touch $n && git add $n && git commit -q -m \"number $n\"; done")
    assert "number 1" in workspace.bash("git log", timeout=20)
    assert "exit" not in workspace.bash("git commit -q --amend", timeout=20)
    assert "exit" not in workspace.bash("git rebase -q -i HEAD~2", timeout=20)
    assert workspace.bash("read answer; echo \"<$answer>\"", timeout=20) == "<>"
    environment = workspace.bash("env")  # git calls a pager only where it sees a terminal, as this test has none
    assert "sleep" not in environment and {"PAGER=cat", "GIT_TERMINAL_PROMPT=0"} <= set(environment.split("\n"))


@POSIX
def test_a_folder_that_a_command_removed_does_not_break_the_next(workspace):
    """B014"""
    workspace.bash("mkdir d; cd d; rm -rf ../d")
    assert workspace.bash("echo hi") == "hi"


def test_a_root_that_is_gone_is_said_to_be_gone(workspace):
    """B014"""
    workspace.root.rmdir()
    with refused(str(workspace.root), "no longer exists"):
        workspace.bash("echo hi")


@POSIX
def test_the_api_key_is_not_in_the_commands_environment(workspace, monkeypatch):
    monkeypatch.setenv("ANTHROPIC_API_KEY", "secret")
    monkeypatch.setenv("ANTHROPIC_AUTH_TOKEN", "secret")
    assert "secret" not in workspace.bash("env")


@POSIX
@pytest.mark.parametrize("command", ["a\0b", "\ud800", "x" * 3_000_000], ids=["NUL", "surrogate", "too long"])
def test_a_command_that_cannot_be_started_says_why(command, workspace):
    with pytest.raises(ToolError, match="could not start"):
        workspace.bash(command)


@POSIX
def test_ctrl_c_kills_the_command_and_keeps_what_it_printed(workspace):
    """B131"""
    def strike():
        pid_in(workspace.root / "pid")
        press_ctrl_c()

    threading.Thread(target=strike).start()
    with pytest.raises(Interrupted, match="working"):
        workspace.bash("echo working; (trap '' TERM; sleep 60) & echo $! > pid; wait")
    until(lambda: not alive(pid_in(workspace.root / "pid")))


@POSIX
def test_ctrl_c_at_any_instant_leaves_no_process(workspace, tmp_path):
    """B130: the later the signal the further the command; each of its processes names itself in a file."""
    pids = tmp_path / "pids"
    pids.mkdir()
    for number in range(25):
        timer = threading.Timer(number * 0.002, press_ctrl_c)
        with pytest.raises(KeyboardInterrupt):
            timer.start()
            workspace.bash(f"touch {pids}/$$; sleep 60 & touch {pids}/$!; wait")
            pytest.fail("the command ended by itself")
        timer.join()
    until(lambda: not any(alive(int(path.name)) for path in pids.iterdir()))
    assert any(pids.iterdir())


@POSIX
def test_a_ctrl_c_that_wakes_no_wait_is_noticed_all_the_same(workspace):
    """B134: one that strikes just before a wait begins is like this one, which another thread receives."""
    def strike():
        until((workspace.root / "begun").exists)
        signal.pthread_kill(threading.get_ident(), signal.SIGINT)

    threading.Thread(target=strike).start()
    signal.pthread_sigmask(signal.SIG_BLOCK, [signal.SIGINT])
    try:
        with pytest.raises(KeyboardInterrupt):
            workspace.bash("touch begun; sleep 60")
    finally:
        signal.pthread_sigmask(signal.SIG_UNBLOCK, [signal.SIGINT])


@POSIX
def test_a_second_ctrl_c_during_the_kill_still_ends_the_command(workspace):
    def strike():
        pid_in(workspace.root / "pid")
        press_ctrl_c()
        time.sleep(0.1)  # into the half second that the kill waits
        press_ctrl_c()

    striking = threading.Thread(target=strike)
    with pytest.raises(KeyboardInterrupt):
        striking.start()
        try:
            workspace.bash("trap '' TERM; echo $$ > pid; while :; do sleep 0.05; done")
            pytest.fail("the command ended by itself")
        finally:
            striking.join()  # on a slow machine the second one comes now
    until(lambda: not alive(pid_in(workspace.root / "pid")))


STAYS = "sleep 60 & echo $! > pid"


@POSIX
@pytest.mark.parametrize("command, ending", [
    (STAYS, ""), (STAYS, "raise SystemExit(3)"), (STAYS, "1 / 0"), (f"set -m; {STAYS}", ""),
    ("nohup sleep 60 >/dev/null 2>&1 & echo $! > pid", ""),
    ("(trap '' TERM HUP; echo $BASHPID > pid; sleep 60) > /dev/null & sleep 0.1", "")])
def test_what_a_command_left_behind_ends_with_the_program(command, ending, workspace):
    """Invariant I9."""
    code = f"import workspace\nworkspace.Workspace({str(workspace.root)!r}).bash({command!r})\n{ending}"
    subprocess.run([sys.executable, "-c", code], cwd=ROOT, capture_output=True, timeout=60)
    until(lambda: not alive(pid_in(workspace.root / "pid")))


@POSIX
def test_a_command_running_in_a_thread_ends_with_the_program(workspace):
    """Invariant I9."""
    code = ("import os, threading, time, workspace\n"
            f"ws = workspace.Workspace({str(workspace.root)!r})\n"
            "command = 'trap \"\" TERM; echo $$ > pid; sleep 60'\n"
            "threading.Thread(target=ws.bash, args=(command,), daemon=True).start()\n"
            "while not os.path.exists(ws.root / 'pid'): time.sleep(0.01)\n")
    subprocess.run([sys.executable, "-c", code], cwd=ROOT, capture_output=True, timeout=60)
    until(lambda: not alive(pid_in(workspace.root / "pid")))


@POSIX
def test_ctrl_c_on_the_terminal_does_not_reach_the_command_itself(workspace):
    """B134: the command has a process group and a session of its own."""
    assert workspace.bash("ps -o pgid= -p $$").strip() != str(os.getpgrp())


# ------------------------------------------------------------------------------- read


@pytest.mark.parametrize("data, result", [
    (b"", "(a.txt is empty)"), (b"one\ntwo\n", "1\tone\n2\ttwo"), (b"one\ntwo", "1\tone\n2\ttwo"),
    (b"\n", "1\t"), (b"one\r\ntwo\r\n", "1\tone\n2\ttwo"), (b"\xef\xbb\xbfone\n", "1\tone"),
    (b"caf\xe9\n", "1\tcaf\ufffd"),
    (b"a\rb\rc", "1\ta\rb\rc"), ("a\u2028b\x0bc\n".encode(), "1\ta\u2028b\x0bc")], ids=repr)
def test_each_line_comes_with_its_number(data, result, workspace):
    put(workspace, "a.txt", data)
    assert workspace.read("a.txt") == result


@pytest.mark.parametrize("first, last, result", [
    (1, 1, "1\ta"), (2, 3, "2\tb\n3\tc"), (3, None, "3\tc"), (3, 99, "3\tc"),
    (4, None, "(a.txt has 3 lines; there is no line 4)"), (9, 9, "(a.txt has 3 lines; there is no line 9)")])
@pytest.mark.parametrize("end", ["", "\n"])
def test_a_range_is_counted_from_one_and_inclusive(first, last, result, end, workspace):
    put(workspace, "a.txt", "a\nb\nc" + end)
    assert workspace.read("a.txt", first, last) == result


@pytest.mark.parametrize("first, last", [(0, None), (-1, 2), (3, 2), (1, 0)])
def test_a_range_that_makes_no_sense_is_refused(first, last, workspace):
    put(workspace, "a.txt", "a\n")
    with refused("start_line"):
        workspace.read("a.txt", first, last)


def test_a_long_file_is_cut_and_its_total_is_named(workspace):
    put(workspace, "a.txt", "line\n" * 5_000)
    result = workspace.read("a.txt")
    assert result.endswith("2000\tline\n[the file has 5,000 lines; next: start_line=2001]")
    assert workspace.read("a.txt", 4_001).endswith("5000\tline")


@pytest.mark.parametrize("width, count", [(100, 1_000), (1_999, 30), (2_001, 30), (9_999, 17)])
def test_reading_on_from_where_it_was_cut_misses_no_line(width, count, workspace):
    put(workspace, "a.txt", "".join(f"{number:04}{'x' * width}\n" for number in range(1, count + 1)))
    seen, start = [], 1
    while start:
        *lines, last = workspace.read("a.txt", start).split("\n")
        start = int(last.split("=")[1].rstrip("]")) if last.startswith("[the file") else 0
        seen += [line for line in (lines if start else [*lines, last])]
        assert len("\n".join(lines)) <= 30_000 and (not start or f"[the file has {count:,} lines" in last)
    assert [line.split("\t")[0] for line in seen] == [line.split("\t")[1][:4].lstrip("0") for line in seen]
    assert len(seen) == count


@pytest.mark.parametrize("end", [None, 1])
def test_a_megabyte_in_one_line_is_cut_with_a_mark(end, workspace):
    """B028"""
    put(workspace, "a.json", "é" * 500_000)
    result = workspace.read("a.json", 1, end)
    assert result.startswith("1\té") and len(result) < 3_000 and "more on this line]" in result


def test_a_few_lines_of_a_very_large_file_cost_only_those(workspace):
    with open(workspace.root / "a.txt", "wb") as file:
        file.write(b"one\ntwo\n" * 2_000)
        file.truncate(1 << 34)
    started = time.process_time()
    assert workspace.read("a.txt", 3, 4) == "3\tone\n4\ttwo"
    assert time.process_time() - started < 2


def test_a_binary_file_is_refused_by_name(workspace):
    put(workspace, "a.bin", b"PNG\0\1")
    with refused("read: a.bin is a binary file (5 bytes)"):
        workspace.read("a.bin")


@POSIX
def test_what_is_no_regular_file_is_refused_at_once(workspace, monkeypatch):
    """B029"""
    os.mkfifo(workspace.root / "pipe")
    (workspace.root / "folder").mkdir()
    monkeypatch.chdir(workspace.root)
    with socket.socket(socket.AF_UNIX) as server:
        server.bind("socket")
        for name, kind in (("pipe", "a pipe"), ("folder", "a folder"), ("socket", "a pipe, socket")):
            for call in (lambda: workspace.read(name), lambda: workspace.write(name, "x"),
                         lambda: workspace.edit(name, "a", "b")):
                with refused(f"{name} is {kind}"):
                    call()
        with refused("pipe is a pipe"):
            workspace.grep("x", "pipe")
        put(workspace, "a.txt", "x\n")
        assert workspace.grep("x") == "a.txt:1:x"
    with refused("null is a pipe, socket or device"):
        Workspace("/dev").read("null")


@pytest.mark.skipif(not Path("/proc/self/status").exists(), reason="needs /proc")
def test_a_proc_file_of_size_zero_is_read():
    """B029"""
    assert workspace_of_proc().read("status").startswith("1\tName:")


def workspace_of_proc() -> Workspace:
    return Workspace(f"/proc/{os.getpid()}")


# ------------------------------------------------------------------------------- write


def test_write_says_what_changed_and_makes_folders(workspace):
    assert workspace.write("a/b/c.txt", "one\ntwo") == "created a/b/c.txt: 2 lines, 7 bytes"
    assert workspace.write("a/b/c.txt", "é\n") == "updated a/b/c.txt: 1 lines, 3 bytes"
    assert (workspace.root / "a/b/c.txt").read_bytes() == "é\n".encode()


@pytest.mark.parametrize("before, content, after", [
    (b"a\r\nb\r\n", "c\nd\n", b"c\r\nd\r\n"), (b"a\r\nb\n", "c\n", b"c\n"), (b"a\n", "b\r\n", b"b\r\n"),
    (b"\xef\xbb\xbfa\n", "b\n", b"\xef\xbb\xbfb\n"),
    (b"\xef\xbb\xbfa\r\n", "\ufeffb\n", b"\xef\xbb\xbfb\r\n"),
    (b"", "a\n", b"a\n")], ids=repr)
def test_write_keeps_line_endings_and_byte_order_mark(before, content, after, workspace):
    path = put(workspace, "a.txt", before)
    workspace.write("a.txt", content)
    assert path.read_bytes() == after


@POSIX
@pytest.mark.parametrize("mode", [0o755, 0o600, 0o664])
def test_the_mode_stays(mode, workspace):
    """B018"""
    path = put(workspace, "run.sh", "echo one\n", mode)
    workspace.edit("run.sh", "one", "two")
    workspace.write("run.sh", "echo three\n")
    workspace.revert("run.sh")
    assert stat.S_IMODE(path.stat().st_mode) == mode and path.read_text() == "echo two\n"


@POSIX
def test_a_new_file_follows_the_umask(workspace):
    """B018"""
    before = os.umask(0o027)
    try:
        workspace.write("a.txt", "x")
    finally:
        os.umask(before)
    assert stat.S_IMODE((workspace.root / "a.txt").stat().st_mode) == 0o640


@POSIX
def test_the_owner_stays_when_root_writes(workspace):
    if os.geteuid():
        pytest.skip("only root can give files away")
    path = put(workspace, "a.txt", "x\n")
    os.chown(path, 1234, 1234)
    workspace.write("a.txt", "y\n")
    assert (path.stat().st_uid, path.stat().st_gid) == (1234, 1234)


@POSIX
def test_a_symbolic_link_stays_and_its_target_is_changed(workspace):
    """B019"""
    real, link = put(workspace, "real.txt", "one\n"), workspace.root / "link.txt"
    link.symlink_to("real.txt")
    workspace.edit("link.txt", "one", "two")
    assert link.is_symlink() and real.read_text() == "two\n"
    workspace.write("link.txt", "three\n")
    assert link.is_symlink() and real.read_text() == "three\n"


@POSIX
def test_a_dangling_link_inside_is_written_through(workspace):
    """B019"""
    (workspace.root / "link.txt").symlink_to("real.txt")
    workspace.write("link.txt", "x\n")
    assert (workspace.root / "link.txt").is_symlink() and (workspace.root / "real.txt").read_text() == "x\n"


@POSIX
def test_a_hard_link_stays_one_file(workspace):
    """B019"""
    real, other = put(workspace, "real.txt", "one\n", 0o640), workspace.root / "other.txt"
    other.hardlink_to(real)
    workspace.edit("real.txt", "one", "two")
    assert other.read_text() == "two\n" and other.samefile(real)
    assert stat.S_IMODE(real.stat().st_mode) == 0o640


def test_a_reader_sees_the_old_bytes_or_the_new(workspace):
    path, texts, seen = put(workspace, "a.txt", b"a" * 100_000), [b"a" * 100_000, b"b" * 100_000], set()
    writer = threading.Thread(target=lambda: [atomic_write(path, texts[number % 2]) for number in range(200)])
    writer.start()
    while writer.is_alive():
        with contextlib.suppress(PermissionError):  # Windows: while it is being replaced
            seen.add(path.read_bytes())
    writer.join()
    assert seen <= set(texts) and [entry.name for entry in workspace.root.iterdir()] == ["a.txt"]


def test_what_cannot_be_replaced_is_named_and_not_the_temporary_file(workspace):
    with pytest.raises(OSError) as refused_by_the_system:
        atomic_write(workspace.root, b"a folder lies there")
    assert refused_by_the_system.value.filename == str(workspace.root) and ".tmp" not in str(refused_by_the_system.value)


def test_a_read_only_file_is_not_written(workspace):
    path = put(workspace, "a.txt", "x\n", 0o444)
    for call in (lambda: workspace.write("a.txt", "y\n"), lambda: workspace.edit("a.txt", "x", "y")):
        with refused("a.txt", "read-only"):
            call()
    assert path.read_text() == "x\n"
    path.chmod(0o644)


def test_a_folder_that_cannot_be_written_is_named_and_nothing_is_left(workspace):
    put(workspace, "file.txt", "x\n")
    with refused("created file.txt/a.txt"):
        workspace.write("file.txt/a.txt", "y\n")
    if os.name == "posix" and os.geteuid():
        folder = workspace.root / "closed"
        folder.mkdir(mode=0o555)
        with refused("created closed/a.txt", "Permission denied"):
            workspace.write("closed/a.txt", "y\n")
    with refused("revert: file.txt/a.txt was not changed"):
        workspace.revert("file.txt/a.txt")


def test_a_file_changed_by_someone_else_is_not_overwritten(workspace):
    path = put(workspace, "a.txt", "one\n")
    workspace.read("a.txt")
    path.write_text("mine, and longer\n")
    with refused("changed by someone else", "read it"):
        workspace.write("a.txt", "agent\n")
    assert path.read_text() == "mine, and longer\n"
    workspace.read("a.txt")
    workspace.write("a.txt", "agent\n")
    assert path.read_text() == "agent\n"


# ------------------------------------------------------------------------------- edit


@pytest.mark.parametrize("before, old, new, after", [
    (b"1\r\n2\r\n3\n4\r\n", "4", "four", b"1\r\n2\r\n3\nfour\r\n"),
    (b"a\r\nb\r\nc\r\n", "a\nb", "x\ny\nz", b"x\r\ny\r\nz\r\nc\r\n"),
    (b"a\r\nb\r\n", "b", "x\ny", b"a\r\nx\r\ny\r\n"), (b"a\nb\n", "b", "x\ny", b"a\nx\ny\n"),
    (b"a\r\nb\nc\n", "b\nc", "x\ny", b"a\r\nx\ny\n"), (b"a\rb\rc", "b", "x", b"a\rx\rc"),
    (b"\xef\xbb\xbfa\nb\n", "b", "x", b"\xef\xbb\xbfa\nx\n"),
    (b"\xef\xbb\xbfa\n", "a\n", "x\n", b"\xef\xbb\xbfx\n"),
    (b"caf\xe9 one\n", "one", "two", b"caf\xe9 two\n"), ("ünï\n".encode(), "nï", "x", "üx\n".encode()),
    (b"no newline", "newline", "end", b"no end"), (b"abc", "b", "", b"ac")], ids=repr)
def test_an_edit_changes_only_its_place(before, old, new, after, workspace):
    """B016"""
    path = put(workspace, "a.txt", before)
    workspace.edit("a.txt", old, new)
    assert path.read_bytes() == after


@POSIX
def test_edits_of_one_file_at_the_same_moment_are_all_kept(workspace):
    """B127: subagents, teammates and workers share a folder, each with a Workspace of its own, by any spelling."""
    for _ in range(5):
        path = put(workspace, "f", "".join(f"line {number:03}.\n" for number in range(100)))
        link = workspace.root / "link"
        link.unlink(missing_ok=True)
        link.symlink_to("f")
        start = threading.Barrier(6)

        def edit(number, name):
            own = Workspace(workspace.root)
            start.wait()
            own.edit(name, f"line {number:03}.", f"changed by {number}")

        names = ["f", "./f", str(path), "link", "f", "./f"]
        threads = [threading.Thread(target=edit, args=(number * 10, name)) for number, name in enumerate(names)]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join()
        assert [path.read_text().count(f"changed by {number}\n") for number in range(0, 60, 10)] == [1] * 6


@pytest.mark.parametrize("text, old, new, words", [
    ("abc", "", "X", "old_text is empty"), ("", "", "X", "old_text is empty"),
    ("a", "zzz", "y", "is not in a.txt"), ("a\n", "a", "a", "are the same"), ("a", "z", "z", "are the same"),
    ("a\nb\na\n", "a", "c", "2 times in a.txt (lines 1, 3)"), ("aaa", "aa", "b", "occurs 2 times"),
    ("if x:\n\ty\n", "if x:\n    y", "z", "only with other white space"),
    ("a\0b", "a", "b", "binary")], ids=repr)
def test_an_edit_that_cannot_be_made_says_why_and_changes_nothing(text, old, new, words, workspace):
    """B021, B022"""
    path = put(workspace, "a.txt", text)
    with refused("edit: ", words):
        workspace.edit("a.txt", old, new)
    assert path.read_text() == text
    with refused("was not changed"):
        workspace.revert("a.txt")


def test_an_edit_shows_the_changed_lines_with_their_numbers(workspace):
    put(workspace, "a.txt", "a\r\nb\r\nc\r\n")
    assert workspace.edit("a.txt", "b", "x\ny") == "edited a.txt: 4 lines, 12 bytes\n2\tx\n3\ty"


def test_a_long_edit_is_shown_in_part(workspace):
    put(workspace, "a.txt", "a\n")
    assert workspace.edit("a.txt", "a", "x\n" * 100).endswith("40\tx\n[61 more lines]")


# ------------------------------------------------------------------------------- revert


def test_revert_goes_back_one_change_at_a_time_byte_for_byte(workspace):
    """B098: without git as well."""
    path = put(workspace, "a.txt", b"\xef\xbb\xbfone\r\n\xff")
    workspace.edit("a.txt", "one", "two")
    workspace.edit("a.txt", "two", "three")
    assert "bytes as before" in workspace.revert("a.txt") and b"two" in path.read_bytes()
    workspace.revert("a.txt")
    assert path.read_bytes() == b"\xef\xbb\xbfone\r\n\xff"
    with refused("was not changed by write or edit"):
        workspace.revert("a.txt")


def test_revert_deletes_what_the_change_created_and_nothing_else(workspace):
    """B102"""
    mine = put(workspace, "u1.txt", "mine\n")
    for name in ("n1.txt", "n2.txt"):
        workspace.write(name, "x\n")
        assert "gone" in workspace.revert(name)
    assert list(workspace.root.iterdir()) == [mine]


def test_a_file_the_agent_failed_to_read_is_not_its_own_to_revert(workspace):
    """B096"""
    with refused("does not exist"):
        workspace.read("missing.txt")
    path = put(workspace, "missing.txt", "mine\n")
    with refused("was not changed"):
        workspace.revert("missing.txt")
    assert path.read_text() == "mine\n"


@pytest.mark.parametrize("change", ["write", "delete", "folder"])
def test_revert_refuses_when_someone_else_changed_the_file_since(change, workspace):
    """B098"""
    path = put(workspace, "a.txt", "one\n")
    workspace.write("a.txt", "two\n")
    path.write_text("mine\n") if change == "write" else path.unlink()
    path.mkdir() if change == "folder" else None
    with refused("changed by someone else"):
        workspace.revert("a.txt")
    assert path.is_dir() if change == "folder" else path.exists() == (change == "write")


@POSIX
def test_a_change_made_by_the_shell_is_not_claimed_to_be_reverted(workspace):
    """B100"""
    put(workspace, "f", "a\n")
    workspace.bash("sed -i.bak s/a/b/ f")
    with refused("was not changed by write or edit"):
        workspace.revert("f")
    assert "bash are not covered" in Workspace.revert.__doc__


@POSIX
def test_revert_restores_the_mode(workspace):
    path = put(workspace, "run.sh", "one\n", 0o755)
    workspace.edit("run.sh", "one", "two")
    path.chmod(0o600)
    workspace.revert("run.sh")
    assert stat.S_IMODE(path.stat().st_mode) == 0o755


@GIT
def test_changes_and_reverts_leave_git_folders_alone(workspace):
    """B101"""
    subprocess.run(["git", "init", "-q", workspace.root], check=True)
    before = {path: path.stat().st_mtime_ns for path in (workspace.root / ".git").rglob("*")}
    workspace.write("a.txt", "x\n")
    workspace.edit("a.txt", "x", "y")
    workspace.revert("a.txt")
    assert {path: path.stat().st_mtime_ns for path in (workspace.root / ".git").rglob("*")} == before


# ------------------------------------------------------------------------------- grep and glob


@pytest.fixture
def git():
    return shutil.which("git")


@pytest.fixture(params=["ripgrep", "python"])
def search(request, monkeypatch, tmp_path):
    """Each test that uses it runs with ripgrep and without."""
    if request.param == "ripgrep" and not shutil.which("rg"):
        pytest.skip("ripgrep is not installed")
    if request.param == "python":
        monkeypatch.setenv("PATH", str(tmp_path))


def test_matches_come_as_path_line_and_text_sorted(search, workspace):
    put(workspace, "b.txt", "x one\nnothing\nx two\n")
    put(workspace, "a/c.txt", "x three\n")
    assert workspace.grep("x") == "a/c.txt:1:x three\nb.txt:1:x one\nb.txt:3:x two"
    assert workspace.grep("x", "a") == "a/c.txt:1:x three"
    assert workspace.grep("x", "b.txt", glob="*.none") == "b.txt:1:x one\nb.txt:3:x two"


def test_no_match_is_said_and_a_bad_pattern_is_an_error(search, workspace):
    put(workspace, "a.txt", "x\n")
    assert workspace.grep("zzz") == "(no matches for zzz in .)"
    for pattern in ("[", "(", "a\nb", "a\\nb"):
        with refused("grep: "):
            workspace.grep(pattern)
    with refused("grep: nowhere does not exist"):
        workspace.grep("x", "nowhere")
    for call in (lambda: workspace.grep("x", glob="{"), lambda: workspace.glob("[z-a]"),
                 lambda: workspace.glob("}")):
        with refused("is not a valid glob"):
            call()


@pytest.mark.parametrize("pattern", ["-77", "->", "--pdf-engine", "-e", "--", "-"])
def test_a_pattern_or_path_that_begins_with_a_dash_is_no_option(pattern, search, workspace):
    """B025"""
    put(workspace, "-dir/-f.txt", f"see {pattern} here\n")
    assert workspace.grep(pattern, "-dir") == f"-dir/-f.txt:1:see {pattern} here"
    assert workspace.grep(pattern, glob="-f.txt") == f"-dir/-f.txt:1:see {pattern} here"
    assert workspace.glob("-f*", "-dir") == "-dir/-f.txt"


@pytest.mark.parametrize("data", [
    b"NEEDLE one\n\0\nNEEDLE two\n", b"NEEDLE\n" * 20_000 + b"\0\n", b"\0NEEDLE"], ids=len)
def test_a_match_in_a_binary_file_is_told_once(data, search, workspace):
    """B026"""
    put(workspace, "b.py", data)
    assert workspace.grep("NEEDLE") == "b.py: binary file matches"


@POSIX
def test_links_are_not_followed_and_each_file_comes_once(search, workspace):
    """B024"""
    put(workspace, "d/a.txt", "x\n")
    (workspace.root / "loop").symlink_to("loop")
    (workspace.root / "d/up").symlink_to("..")
    (workspace.root / "again.txt").symlink_to("d/a.txt")
    assert workspace.glob("**/*") == "d/a.txt" and workspace.grep("x") == "d/a.txt:1:x"


def test_many_matches_are_capped_with_the_whole_count(search, workspace):
    for number in range(300):
        put(workspace, f"f{number:03}.txt", "x\n" * (1 if number else 1_000))
    lines = workspace.grep("x").split("\n")
    assert lines[0] == "f000.txt:1:x" and lines[-1] == "[250 of 1,299 matches shown; narrow the search]"
    put(workspace, "f000.txt", "")
    assert workspace.grep("x").split("\n")[249] == "f250.txt:1:x"
    for number in range(300):
        put(workspace, f"g{number:03}.txt")
    assert workspace.glob("*").split("\n")[-1] == "[500 of 600 files shown; narrow the search]"


def test_a_long_matching_line_is_cut_with_a_mark(search, workspace):
    put(workspace, "a.js", "x" + "é" * 9_000 + "\n")
    assert workspace.grep("x") == f"a.js:1:x{'é' * 499} [...]"


def test_a_result_of_long_lines_stays_within_its_limit(search, workspace):
    put(workspace, "a.js", ("x" * 900 + "\n") * 240)
    result = workspace.grep("x")
    assert len(result) <= 30_000 and "of 240 matches shown" in result


@pytest.mark.parametrize("data, pattern", [
    (b"one\r\ntwo\r\n", "^one$"), (b"\xef\xbb\xbfone\n", "^one"), ("one é\n".encode("utf-16"), "é"),
    (b"\xe9one\xff\n", "one"), (b"one", "one$"), ("ONE é\n".encode(), "(?i)one É")], ids=repr)
def test_a_match_does_not_depend_on_encoding_or_line_ends(data, pattern, search, workspace):
    put(workspace, "a.txt", data)
    assert workspace.grep(pattern).startswith("a.txt:1:")


def test_upper_and_lower_case_are_one_when_asked(search, workspace):
    put(workspace, "a.txt", "Needle\n")
    assert workspace.grep("nEEDLE").startswith("(no matches")
    assert workspace.grep("nEEDLE", ignore_case=True) == "a.txt:1:Needle"


GLOBS = {
    "*.py": ["a.py", "b,c.py", "src/deep/x.py", "src/x.py"], "src/*.py": ["src/x.py"],
    "./*.py": ["a.py", "b,c.py"], "src/**/*.py": ["src/deep/x.py", "src/x.py"],
    "**/deep/*": ["src/deep/x.py"], "src/**": ["src/deep/x.py", "src/x.py"],
    "*.{py,md}": ["a.py", "b,c.py", "d.md", "src/deep/x.py", "src/x.py"],
    "[!ab]*": ["d.md", "src/deep/x.py", "src/x.py"], "[ad].??": ["a.py", "d.md"], "b,c.py": ["b,c.py"],
    "{x,b\\,c}.py": ["b,c.py", "src/deep/x.py", "src/x.py"], "src[/]x.py": [], "src[!a]x.py": [],
    "nothing": [], "": [], ".": [], "*": ["a.py", "b,c.py", "d.md", "src/deep/x.py", "src/x.py"],
}


@pytest.mark.parametrize("pattern, names", GLOBS.items(), ids=map(repr, GLOBS))
def test_a_glob_names_files(pattern, names, search, workspace):
    for name in ("a.py", "b,c.py", "d.md", "src/x.py", "src/deep/x.py"):
        put(workspace, name, "x\n")
    assert workspace.glob(pattern) == ("\n".join(names) or f"(no files match {pattern} in .)")
    assert [line.split(":")[0] for line in workspace.grep("x", glob=pattern).split("\n") if names] == names


def test_a_glob_is_relative_to_its_path(search, workspace):
    put(workspace, "src/x.py")
    assert workspace.glob("x.py", "src") == workspace.glob("./x.py", "src") == "src/x.py"
    assert workspace.glob("src/*", "src").startswith("(no files")
    with refused("glob: src/x.py is not a folder"):
        workspace.glob("*", "src/x.py")


IGNORE = ("*.log\r\nbuild/\n!keep.log\n/rooted.txt\ndeep/**/x.txt\n# comment\n\\#hash.txt\n\nsp\\ \n"
          "trail.txt   \nfoo/*\n!foo/bar.txt\n{br,ce}.txt\n[z-a]\nmid/dle.txt\nt?.md\nc[!a]t.md\n"
          "cache/**\n!cache/keep.txt\nwhole\n")
TREE = ["a.log", "keep.log", "sub/keep.log", "sub/b.log", "build/x.txt", "sub/build/y.txt", "build.txt",
        "rooted.txt", "sub/rooted.txt", "deep/x.txt", "deep/a/b/x.txt", "#hash.txt", "sp ", "trail.txt",
        "foo/bar.txt", "foo/baz.txt", "br.txt", "ce.txt", "mid/dle.txt", "sub/mid/dle.txt", "t1.md", "t12.md",
        "cat.md", "cbt.md", "cache/keep.txt", "cache/s/keep.txt", "x.outer", "whole/f.txt", ".hidden/h.txt",
        ".env", "co:lon:3:x.txt", "nl\nname.txt", "ünïcode/ñ.txt", "-dash.txt", "tracked.log",
        "sub/nest/b.log", "sub/nest/c.log", "sub/nest/d.md", "{curly}.py", "nested/f.log", "nested/g.txt",
        "linked/a.log", "plain/.ignored-by-ripgrep-only"]


@pytest.fixture
def tree(workspace):
    """A repository with every kind of ignore rule, odd name and odd content; the workspace is inside it."""
    (workspace.root.parent / ".git").mkdir()
    (workspace.root.parent / ".gitignore").write_text("*.outer\n")
    for name in TREE:
        put(workspace, name, f"NEEDLE {name!r}\nother\n  needle lower\n")
    for name, data in {
            ".gitignore": IGNORE, "sub/nest/.gitignore": "!b.log\n*.md\n", "nested/.gitignore": "g.txt\n",
            "linked/.git": "gitdir: /nowhere\n", ".ignore": "*.txt\n", "empty.txt": "",
            "crlf.txt": "NEEDLE\r\nx NEEDLE\r\n", "bin.dat": "NEEDLE\n\0\n",
            "bad.txt": b"\xe9NEEDLE\xff\nq\xe9\nNEEDLE", "bom.txt": "\ufeffNEEDLE\n",
            "utf16.txt": "NEEDLE é\n".encode("utf-16"),
            "long.txt": "x" * 3_000 + "NEEDLE\nNEEDLE" + "é" * 3_000,
            "cr.txt": "a\rNEEDLE\rb\n", "blank.txt": "\n\nNEEDLE\n\n"}.items():
        put(workspace, name, data)
    (workspace.root / "nested/.git").mkdir()
    (workspace.root / "link.txt").symlink_to("bom.txt")
    (workspace.root / "dangling").symlink_to("gone")
    with contextlib.suppress(OSError):  # where names must be UTF-8
        put(workspace, os.fsdecode(b"latin\xe9.txt"), "NEEDLE\n")
    return workspace


@POSIX
def test_gitignore_is_obeyed(search, tree):
    shown = tree.glob("**").split("\n")
    for name in ("a.log", "sub/b.log", "build/x.txt", "rooted.txt", "deep/a/b/x.txt", "#hash.txt", "sp ",
                 "trail.txt", "foo/baz.txt", "br.txt", "mid/dle.txt", "t1.md", "cbt.md", "cache/s/keep.txt",
                 "x.outer", "whole/f.txt", "tracked.log", "sub/nest/d.md", "nested/g.txt", "link.txt",
                 "dangling", "linked/.git"):
        assert name not in shown
    for name in ("keep.log", "build.txt", "sub/rooted.txt", "foo/bar.txt", "sub/mid/dle.txt", "cat.md",
                 ".env", "t12.md", "cache/keep.txt", ".hidden/h.txt", "sub/nest/b.log", "nested/f.log",
                 "linked/a.log", "{curly}.py"):
        assert name in shown


@pytest.mark.skipif(not shutil.which("rg"), reason="ripgrep is not installed")
@POSIX
def test_ripgrep_and_python_give_the_same_lines(tree, monkeypatch, tmp_path):
    patterns = ["NEEDLE", "needle$", "^NEEDLE", "a|b", "é", "N.*E", r"\bother\b", "(?i)NEEDLE '"]
    places = [".", "sub", "build", "foo", "nested", "crlf.txt", "bin.dat", "whole", "cache", "a.log"]
    globs = ["**", "*.txt", "*.{md,log}", "**/*.log", "[!a]*.txt", "c?t.md", "{[{]*,co:*}"]

    def everything() -> dict:
        searches = itertools.product(patterns, places[:4], globs[:2])
        found = {("grep", *asked): tree.grep(*asked) for asked in searches}
        found |= {("grep", place): tree.grep("NEEDLE", place) for place in places}
        listings = itertools.product(globs, (".", "sub", "build"))
        found |= {("glob", *asked): tree.glob(*asked) for asked in listings}
        return found

    with_ripgrep = everything()
    monkeypatch.setenv("PATH", str(tmp_path))
    assert everything() == with_ripgrep and "NEEDLE" in with_ripgrep["grep", "."]


@pytest.mark.parametrize("repository", [True, False])
def test_gitignore_counts_only_inside_a_repository(repository, search, workspace):
    if repository:
        (workspace.root / ".git").mkdir()
    put(workspace, ".gitignore", "a.txt\n")
    put(workspace, "a.txt", "x\n")
    assert ("a.txt" in workspace.glob("*").split("\n")) is not repository


@GIT
def test_a_file_that_is_tracked_and_ignored_is_left_out_by_both(git, search, workspace):
    put(workspace, ".gitignore", "*.log\n")
    put(workspace, "a.log", "x\n")
    for arguments in (["init", "-q"], ["add", "-f", "a.log"]):
        subprocess.run([git, *arguments], cwd=workspace.root, check=True)
    assert workspace.glob("*.log").startswith("(no files")
    assert workspace.grep("x", glob="*.log").startswith("(no matches")


def test_the_ignore_rules_of_the_person_play_no_part(search, workspace, monkeypatch, tmp_path):
    (workspace.root / ".git/info").mkdir(parents=True)
    put(workspace, ".git/info/exclude", "a.txt\n")
    put(workspace, "b.txt")
    put(workspace, "a.txt")
    (tmp_path / "config/git").mkdir(parents=True)
    (tmp_path / "config/git/ignore").write_text("b.txt\n")
    monkeypatch.setenv("XDG_CONFIG_HOME", str(tmp_path / "config"))
    (tmp_path / "rc").write_text("--max-depth=0\n")
    monkeypatch.setenv("RIPGREP_CONFIG_PATH", str(tmp_path / "rc"))
    assert workspace.glob("*") == "a.txt\nb.txt"


@POSIX
def test_a_folder_that_cannot_be_read_does_not_stop_a_search(search, workspace):
    put(workspace, "a.txt", "x\n")
    put(workspace, "closed/b.txt", "x\n")
    put(workspace, "c.txt", "x\n", 0)
    (workspace.root / "closed").chmod(0)
    try:
        expected = "a.txt:1:x" if os.geteuid() else "a.txt:1:x\nc.txt:1:x\nclosed/b.txt:1:x"
        assert workspace.grep("x") == expected
    finally:
        (workspace.root / "closed").chmod(0o755)


def test_the_workspace_may_be_the_root_of_the_file_system(search):
    assert list_files(ROOT, "search.py", 2) == (1, ["search.py"])
    if os.name == "posix":
        assert Workspace("/").glob("search.py", str(ROOT)) == f"{str(ROOT)[1:]}/search.py"


@POSIX
def test_many_commands_that_ignore_the_request_to_end_are_ended_together(tmp_path):
    """I9: one after the other they would keep the program from ending for many seconds."""
    program = f"""
import sys, time; sys.path.insert(0, {str(ROOT)!r})
from pathlib import Path
from workspace import Shell
for number in range(12):
    Shell(f"trap '' TERM; echo $$ > {{number}}; sleep 60; sleep 60", Path({str(tmp_path)!r})).start()
while len(list(Path({str(tmp_path)!r}).iterdir())) < 12:
    time.sleep(0.01)
print(time.monotonic())
"""
    begun = subprocess.run([sys.executable, "-c", program], capture_output=True, check=True, timeout=60).stdout
    assert time.monotonic() - float(begun) < 12 * 0.5
    until(lambda: not any(alive(pid_in(tmp_path / str(number))) for number in range(12)))
