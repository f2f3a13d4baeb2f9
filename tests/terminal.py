"""A real pseudo-terminal for tests: starts a program in it, types, waits for what appears."""

import fcntl
import os
import pty
import re
import select
import signal
import struct
import subprocess
import termios
import time

from program import Program


class Terminal:
    """A program in a pseudo-terminal. Use as a `with` block; the program is ended with it."""

    def __init__(self, *arguments, folder, columns=80, lines=24, fresh=False, **environment):
        self.seen, self.position = "", 0
        self.master, slave = pty.openpty()
        fcntl.ioctl(slave, termios.TIOCSWINSZ, struct.pack("HHHH", lines, columns, 0, 0))
        self.slave = slave
        self.before = termios.tcgetattr(slave)
        environment = {"PATH": os.environ["PATH"], "HOME": str(folder), "TERM": "xterm-256color",
                       "LANG": "C.UTF-8", **environment}
        self.process = Program(*arguments, folder=folder, environment=environment, terminal=slave, fresh=fresh)

    def type(self, text):
        os.write(self.master, text.encode("utf-8"))

    def interrupt(self, shows):
        """Ctrl-C, pressed when the program sleeps; waits for what it must show.

        A signal that falls between readline's check and its wait is noticed only with the next
        key: a gap of microseconds in CPython's readline module that a person never hits. On a
        busy machine a test may, so it presses once more.
        """
        deadline = time.monotonic() + 10
        state = ["ps", "-o", "stat=", "-p", str(self.process.pid)]
        while not subprocess.run(state, capture_output=True, text=True).stdout.startswith("S"):
            assert time.monotonic() < deadline, "the program does not come to rest"
        self.type("\x03")
        try:
            return self.wait_for(shows, seconds=5)
        except AssertionError:
            self.type("\x03")
            return self.wait_for(shows)

    def wait_for(self, pattern, seconds=15):
        """Reads until the pattern appears behind what was waited for before; returns the match."""
        deadline = time.monotonic() + seconds
        while not (found := re.compile(pattern).search(self.seen, self.position)):
            left = deadline - time.monotonic()
            ready = select.select([self.master], [], [], max(0, left))[0]
            try:
                chunk = os.read(self.master, 65536) if ready else b""
            except OSError:
                chunk = b""
            assert chunk, f"{pattern!r} did not appear in:\n{self.seen[self.position:]}"
            self.seen += chunk.decode("utf-8", "replace")
        self.position = found.end()
        return found

    def exit_code(self, seconds=10, number=0):
        """Waits for the end; `number` is a signal to send, once more every second (for the gap above)."""
        began, sent = time.monotonic(), 0
        while self.process.poll() is None and (passed := time.monotonic() - began) < seconds:
            if passed >= sent:
                self.process.send_signal(number)
                sent += 1
            if select.select([self.master], [], [], 0.2)[0]:
                self.seen += os.read(self.master, 65536).decode("utf-8", "replace")
        return self.process.wait(timeout=1)

    def hang_up(self, seconds=10):
        """Closes the window in which the program runs; returns its exit code."""
        os.close(self.master)
        self.master = os.open(os.devnull, os.O_RDWR)
        return self.process.wait(timeout=seconds)

    def settings_kept(self):
        """Whether echo, line mode and the rest are as they were before the program started."""
        return termios.tcgetattr(self.slave) == self.before

    def __enter__(self):
        return self

    def __exit__(self, *error):
        if self.process.poll() is None:
            os.killpg(self.process.pid, signal.SIGKILL)
            self.process.wait()
        os.close(self.slave)
        os.close(self.master)
