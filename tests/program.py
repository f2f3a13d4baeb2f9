"""Starts the repository's programs as processes that know the SDK already, since its import takes longer than a run.

Where there is fork, a process that has imported the SDK forks itself for each program, which then has
streams, an environment, a folder and a session of its own. A `fresh` program starts as programs do, and
so do all where there is no fork.

One server for all test workers is started and ended by conftest.py.
"""

import contextlib
import functools
import gc
import json
import os
import runpy
import select
import shutil
import signal
import socket
import subprocess
import sys
import tempfile
import time
from pathlib import Path
from typing import NamedTuple

ROOT = Path(__file__).resolve().parent.parent
SESSIONS = sorted(path.stem for path in ROOT.glob("s[0-9][0-9]_*.py"))
POLL = 0.01  # seconds
SERVER = "TEST_PROGRAM_SERVER"  # the variable that names its socket; every worker finds it there


class Ended(NamedTuple):
    """What is left of a program."""

    code: int
    out: str
    err: str


class Program:
    """A running program: `python SCRIPT ARGUMENTS…` in a folder, on a terminal (a descriptor) or with empty input.

    `poll`, `wait`, `send_signal`, `kill`, `pid` and `returncode` are those of subprocess.Popen. What it
    prints goes to files, so that it never waits for the test; or what is for standard output to the descriptor `out`.
    """

    def __init__(self, script, *arguments, folder, environment=None, terminal=None, out=None, fresh=False):
        self.files = [tempfile.TemporaryFile() for _ in "oe"]
        files = [file.fileno() for file in self.files]
        streams = [terminal] * 3 if terminal else [os.open(os.devnull, os.O_RDONLY), out or files[0], files[1]]
        words, environment = [str(script), *map(str, arguments)], dict(os.environ if environment is None else environment)
        start = fork if os.environ.get(SERVER) and not fresh else spawn
        self.process = start(words, str(folder), environment, streams)
        if not terminal:
            os.close(streams[0])
        self.pid, self.poll = self.process.pid, self.process.poll

    @property
    def returncode(self):
        return self.poll()

    def wait(self, timeout=30):
        deadline = time.monotonic() + timeout
        while self.poll() is None:
            if time.monotonic() > deadline:
                raise TimeoutError(f"the program has not ended within {timeout} seconds")
            time.sleep(POLL)
        return self.poll()

    def send_signal(self, number):
        if self.poll() is None:
            os.kill(self.pid, number)

    def kill(self):
        self.send_signal(getattr(signal, "SIGKILL", signal.SIGTERM))

    def ended(self, timeout=30):
        """Waits for the end; returns the exit code and what was printed."""
        try:
            code = self.wait(timeout)
        finally:
            self.kill()
        [file.seek(0) for file in self.files]
        return Ended(code, *(file.read().decode("utf-8").replace("\r\n", "\n") for file in self.files))


def spawn(words, folder, environment, streams):
    own = {"start_new_session": True, "preexec_fn": take_terminal} if hasattr(os, "fork") else {}
    return subprocess.Popen([sys.executable, *words], cwd=folder, env=environment, stdin=streams[0], stdout=streams[1],
                            stderr=streams[2], **own)


def take_terminal():
    """In a new session: makes standard input, if it is a terminal, that from which Ctrl-C comes."""
    if os.isatty(0):
        import fcntl
        import termios

        fcntl.ioctl(0, termios.TIOCSCTTY, 0)


# ---------------------------------------------------------------------------------- forks


class Fork:
    """A program that the server forked; its end is told through the connection."""

    def __init__(self, pid, connection):
        self.pid, self.connection, self.code = pid, connection, None

    def poll(self):
        if self.code is None and select.select([self.connection], [], [], 0)[0]:
            self.code = int(self.connection.recv(16) or -signal.SIGKILL)  # nothing: the server is gone, and all with it
        return self.code


def fork(words, folder, environment, streams):
    """Asks the server for one more program."""
    connection = socket.socket(socket.AF_UNIX)
    connection.connect(os.environ[SERVER])
    job = json.dumps([words, folder, environment]).encode()
    socket.send_fds(connection, [len(job).to_bytes(4, "big")], streams)
    connection.sendall(job)
    return Fork(int(connection.recv(16)), connection)


class Server:
    """The process that forks programs. It imports the SDK when it is asked for the first one."""

    def __init__(self):
        folder = tempfile.mkdtemp(prefix="programs-")
        os.environ[SERVER] = os.path.join(folder, "socket")
        listening = socket.socket(socket.AF_UNIX)
        listening.bind(os.environ[SERVER])
        listening.listen(64)
        words = [sys.executable, __file__, str(listening.fileno()), folder]
        self.process = subprocess.Popen(words, stdin=subprocess.PIPE, pass_fds=[listening.fileno()],
                                        start_new_session=True)  # Ctrl-C is for the tests
        listening.close()

    def end(self):
        self.process.communicate()  # the end of its input is the end of the server, however the tests ended
        del os.environ[SERVER]


def serve(listening, folder):
    """Forks a program for each connection, and tells it the end of its program. Without its test none goes on."""
    children, (asleep, wake) = {}, socket.socketpair()
    wake.setblocking(False)
    signal.set_wakeup_fd(wake.fileno())
    signal.signal(signal.SIGCHLD, lambda *_: None)
    while True:
        ready = select.select([0, listening, asleep, *filter(None, children.values())], [], [])[0]
        if 0 in ready:
            return end_all(children, folder)
        if asleep in ready:
            asleep.recv(1 << 16)
            reap(children)
        for pid, connection in children.items():
            if connection in ready:  # nobody says anything there: it was closed
                signal_group(pid, signal.SIGTERM)
                children[pid] = None
        if listening in ready:
            warm_up()
            connection = listening.accept()[0]
            size, streams, *_ = socket.recv_fds(connection, 4, 3)
            job = connection.recv(int.from_bytes(size, "big"), socket.MSG_WAITALL)
            if job and not (pid := os.fork()):
                [one.close() for one in (listening, asleep, wake, connection, *filter(None, children.values()))]
                return become(streams, *json.loads(job))
            if job:
                children[pid] = connection
                tell(connection, pid)
            [os.close(stream) for stream in streams]


def reap(children):
    """Takes out the programs that have ended, and tells their codes."""
    for pid in list(children):
        ended, status = os.waitpid(pid, os.WNOHANG)
        if ended:
            tell(children.pop(pid), os.waitstatus_to_exitcode(status))


def tell(connection, number):
    with contextlib.suppress(AttributeError, ConnectionError):  # the test, or its worker, is gone
        connection.send(str(number).encode())


def signal_group(pid, number):
    for send in (os.killpg, os.kill):  # one that has just been forked has no group of its own yet
        with contextlib.suppress(ProcessLookupError):  # it has ended, but its end was not taken notice of
            return send(pid, number)


def end_all(children, folder):
    """Ends all programs, politely first, so that they end what they started."""
    for number in (signal.SIGTERM, signal.SIGKILL):
        deadline = time.monotonic() + 3
        [signal_group(pid, number) for pid in children]
        while children and time.monotonic() < deadline:
            reap(children)
            time.sleep(POLL)
    shutil.rmtree(folder)


@functools.cache
def warm_up():
    """Imports what takes long, once for all programs; collections would find nothing meanwhile."""
    gc.disable()
    import anthropic  # noqa: F401
    import rich.console
    import rich.markdown  # noqa: F401
    import yaml  # noqa: F401

    gc.freeze()
    gc.enable()


def become(streams, words, folder, environment):
    """In the fork: is that program. It ends as any program does, by SystemExit or after its last line."""
    signal.set_wakeup_fd(-1)
    signal.signal(signal.SIGCHLD, signal.SIG_DFL)
    signal.signal(signal.SIGINT, signal.default_int_handler)
    os.setsid()
    for number, stream in enumerate(streams):
        os.dup2(stream, number)
        os.close(stream)
    take_terminal()
    sys.stdin = open(0, encoding="utf-8", errors="surrogateescape", closefd=False)
    sys.stdout = open(1, "w", encoding="utf-8", errors="surrogateescape", closefd=False)
    sys.stderr = open(2, "w", encoding="utf-8", errors="backslashreplace", buffering=1, closefd=False)
    os.chdir(folder)
    os.environ.clear()
    os.environ.update(environment)
    sys.argv, sys.path[0] = words, os.path.dirname(words[0])
    runpy.run_path(words[0], run_name="__main__")


if __name__ == "__main__":
    serve(socket.socket(fileno=int(sys.argv[1])), sys.argv[2])
