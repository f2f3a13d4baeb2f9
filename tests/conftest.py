"""What every test may use: a clean environment, a workspace, and a strict stand-in of its own."""

import gc
import importlib
import io
import itertools
import json
import os
import signal
import sys
import threading
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from types import SimpleNamespace

import pytest

import console
import core
import offline
import program
from endpoint import ThinServer

TESTS = Path(__file__).parent
gc.disable()  # until all tests are imported
os.environ.pop("PYTHONDONTWRITEBYTECODE", None)  # the many programs that tests start need not be compiled each time
LONGEST = ["practice", "s12_worktrees", "docs", "console", "workspace", "endpoints", "trouble", "s06_compact", "s09_teams",
           "offline", "s11_autonomous", "s01_agent_loop"]  # the longest first
HOMES = itertools.count()
SETTINGS = [name for name in os.environ if name.startswith(("ANTHROPIC_", "OFFLINE_", "API_"))] + ["MODEL_ID", "NO_COLOR"]


def pytest_configure(config):
    """Starts the server that programs are forked from, once for all workers; not for tests within a test."""
    if hasattr(os, "fork") and program.SERVER not in os.environ:
        server = program.Server()
        config.add_cleanup(server.end)
        sys.dont_write_bytecode = False
        if not list(TESTS.glob("__pycache__/test_*-pytest-*")):  # a fresh clone: compiled once, not by each worker
            [importlib.import_module(path.stem) for path in TESTS.glob("test_*.py")]


def pytest_collection_modifyitems(items):
    """The longest files first, so that no worker is left alone with one at the end."""
    order = {f"test_{name}.py": place for place, name in enumerate(LONGEST)}
    items.sort(key=lambda item: order.get(item.path.name, len(order)))
    if os.environ.get("PYTEST_XDIST_WORKER"):
        importlib.import_module("anthropic")  # sooner or later each worker needs it
    gc.freeze()  # what is imported stays to the end: no collection need look at it
    gc.enable()


@pytest.fixture(scope="session")
def demos(tmp_path_factory):
    """Every demonstration, played once for all workers: {session: (exit code, output, folder)}.

    The folder holds trace.jsonl, requests.jsonl, and `here`, in which the demonstration was started.
    """
    base = tmp_path_factory.getbasetemp()
    folder = (base.parent if os.environ.get("PYTEST_XDIST_WORKER") else base) / "demonstrations"
    folder.mkdir(exist_ok=True)
    with core.locked(folder / "outcomes", seconds=180):
        if not (folder / "outcomes").exists():
            with ThreadPoolExecutor(2) as pool:
                outcomes = dict(zip(program.SESSIONS, pool.map(lambda name: play_demo(name, folder / name), program.SESSIONS)))
            core.atomic_write(folder / "outcomes", json.dumps(outcomes).encode())
    return {name: (*outcome, folder / name) for name, outcome in json.loads((folder / "outcomes").read_bytes()).items()}


def play_demo(session, folder):
    (folder / "here").mkdir(parents=True)
    kept = {name: value for name, value in os.environ.items() if name not in SETTINGS}
    environment = {**kept, "HOME": str(folder), "OFFLINE_LOG": str(folder / "requests.jsonl")}
    done = program.Program(program.ROOT / f"{session}.py", "--demo", "--trace", folder / "trace.jsonl",
                           folder=folder / "here", environment=environment).ended(120)
    return done.code, done.out + done.err


@pytest.fixture(autouse=True)
def clean_environment(monkeypatch, tmp_path_factory):
    """No key, no endpoint, no colour setting and no home of the person who runs the tests."""
    for name in SETTINGS:
        monkeypatch.delenv(name, raising=False)
    monkeypatch.setenv("HOME", str(tmp_path_factory.mktemp(f"home-{next(HOMES)}", numbered=False)))  # counting is quicker
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
def server(monkeypatch):
    """A server of local models, thin as they are, that core's client talks to; no key is set."""
    with ThinServer() as server:
        threading.Thread(target=server.serve_forever, args=(0.01,), daemon=True).start()
        monkeypatch.setenv("ANTHROPIC_BASE_URL", server.url)
        monkeypatch.setenv("MODEL_ID", "local-model")
        yield server
        server.shutdown()


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
