"""What every test may use: a clean environment, a workspace, and a strict stand-in of its own."""

import os
import signal

import pytest

import core
import offline

os.environ.pop("PYTHONDONTWRITEBYTECODE", None)  # the many programs that tests start need not be compiled each time
SETTINGS = [name for name in os.environ if name.startswith(("ANTHROPIC_", "OFFLINE_"))] + ["MODEL_ID", "NO_COLOR"]


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
