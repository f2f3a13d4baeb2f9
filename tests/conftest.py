"""What every test may use: a clean environment, a workspace, and a strict stand-in of its own."""

import io
import os
import signal
import sys
from types import SimpleNamespace

import pytest

import console
import core
import offline

os.environ.pop("PYTHONDONTWRITEBYTECODE", None)  # the many programs that tests start need not be compiled each time
SETTINGS = [name for name in os.environ if name.startswith(("ANTHROPIC_", "OFFLINE_", "API_"))] + ["MODEL_ID", "NO_COLOR"]


@pytest.fixture(autouse=True)
def clean_environment(monkeypatch, tmp_path_factory):
    """No key, no endpoint, no colour setting and no home of the person who runs the tests."""
    for name in SETTINGS:
        monkeypatch.delenv(name, raising=False)
    monkeypatch.setenv("HOME", str(tmp_path_factory.mktemp("home")))
    signal.signal(signal.SIGINT, signal.default_int_handler)
    listeners = list(core.listeners)
    yield
    core.listeners[:] = listeners


@pytest.fixture
def workspace(tmp_path):
    """An empty workspace; `workspace.root` is its folder."""
    root = tmp_path / "workspace"
    root.mkdir()
    return core.Workspace(root)


@pytest.fixture
def stand_in(monkeypatch):
    """A stand-in that core's client talks to; at the end no rule of the API may have been broken."""
    with offline.start(record=True) as server:
        monkeypatch.setenv("ANTHROPIC_BASE_URL", server.url)
        monkeypatch.setenv("MODEL_ID", "stand-in")
        yield server
        assert not server.errors


@pytest.fixture
def events():
    """Every event emitted during the test, in order."""
    seen: list[dict] = []
    core.listeners.append(seen.append)
    return seen


@pytest.fixture
def run_main(stand_in, monkeypatch, capfd, tmp_path):
    """Runs the main of a session in this process, in the folder `tmp_path`; returns stdout, stderr and the exit code."""
    before = {number: signal.getsignal(number) for number in (signal.SIGTERM, getattr(signal, "SIGHUP", signal.SIGTERM))}
    monkeypatch.chdir(tmp_path)

    def start(make_agent, *arguments, stdin="", **session):
        monkeypatch.setattr(sys, "argv", ["agent", *arguments])
        monkeypatch.setattr(sys, "stdin", io.TextIOWrapper(io.BytesIO(stdin.encode())))
        listeners = list(core.listeners)
        with pytest.raises(SystemExit) as end:
            console.main(make_agent, **{"session": "s01", "title": "the agent loop", **session})
        core.listeners[:] = listeners
        out, err = capfd.readouterr()
        return SimpleNamespace(stdout=out, stderr=err, code=end.value.code or 0)

    yield start
    for number, handler in before.items():
        signal.signal(number, handler)
