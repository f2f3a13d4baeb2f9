"""The front door: command line, exit codes, streams, and the REPL in a real pseudo-terminal."""

import io
import json
import os
import re
import signal
import subprocess
import sys
from pathlib import Path

import pytest

import core
import screen
from program import ROOT, Program
from s01_agent_loop import Agent
from s06_compact import Compacting
from talk import SLEEPER, Tty, needs_posix, processes, until

S01 = ROOT / "s01_agent_loop.py"


@pytest.fixture
def run(run_main, stand_in):
    """Runs s01's main, with faults of the stand-in."""
    def start(*arguments, faults=(), **options):
        stand_in.inject(*faults)
        return run_main(Agent, *arguments, **options)
    return start


# one-shot -----------------------------------------------------------------------------------


def test_one_shot_prints_the_answer_alone_on_stdout(run):
    done = run("-p", "bash echo hi ;; say Done.", "--yes")
    assert (done.stdout, done.code) == ("Done.\n", 0)
    assert "● bash  echo hi" in done.stderr


def test_one_shot_reads_its_prompt_from_stdin(run):
    assert run("-p", "-", stdin="say From stdin.").stdout == "From stdin.\n"


def test_json_output_is_one_valid_object(run):
    done = run("-p", "bash echo hi ;; say Done.", "--yes", "--output-format", "json")
    reply = json.loads(done.stdout)
    assert reply.keys() == {"result", "is_error", "stop", "turns", "usage", "cost", "messages"}
    assert (reply["result"], reply["is_error"], reply["stop"], reply["turns"]) == ("Done.", False, "end_turn", 2)
    assert reply["usage"]["input_tokens"] > 0 and reply["cost"] is None and len(reply["messages"]) == 4


def test_without_a_terminal_and_without_yes_bash_is_denied_and_the_model_told(run):
    reply = json.loads(run("-p", "bash touch made ;; say Done.", "--output-format", "json").stdout)
    assert "permission denied" in reply["messages"][2]["content"][0]["content"]
    assert not Path("made").exists()


def test_an_api_failure_is_one_line_on_stderr_and_exit_code_1(run):
    done = run("-p", "say hi", faults=["401"])
    assert (done.code, done.stdout, len(done.stderr.splitlines())) == (1, "", 1) and "invalid x-api-key" in done.stderr


@pytest.mark.parametrize("fault", ["max_tokens", "refusal", "empty"])
def test_an_answer_that_is_not_whole_is_exit_code_1(run, fault):
    """B002"""
    done = run("-p", "say This is cut in the middle.", "--output-format", "json", faults=[fault])
    reply = json.loads(done.stdout)
    assert done.code == 1 and reply["stop"] == fault and reply["is_error"]
    assert screen.STOPPED[fault] in done.stderr


@pytest.mark.parametrize("arguments, words", [
    (["--workdir", "nowhere"], "nowhere is not a folder"), (["--max-turns", "0"], "at least 1"),
    (["--output-format", "json"], "needs -p"), (["-p", " "], "prompt is empty"),
    (["--trace", "no/such/folder/x"], "No such file"), (["--nonsense"], "unrecognized")])
def test_a_wrong_command_line_is_exit_code_2_and_says_why(run, arguments, words):
    done = run(*arguments)
    assert done.code == 2 and words in done.stderr and "Traceback" not in done.stderr


def test_the_trace_has_one_json_object_a_line_with_a_version(run):
    run("-p", "bash echo hi ;; say Done.", "--yes", "--trace", "t.jsonl")
    events = [json.loads(line) for line in Path("t.jsonl").read_text(encoding="utf-8").splitlines()]
    assert [event["kind"] for event in events] == [
        "user", "request", "reply", "tool_call", "decision", "tool_result", "request", "reply", "stop"]
    assert all(event["v"] == 1 and event["time"] > 0 for event in events)


def test_another_folder_can_be_the_workspace(run):
    Path("inner").mkdir()
    run("-p", "bash touch made ;; say Done.", "--yes", "--workdir", "inner")
    assert Path("inner/made").exists()


def test_each_piped_line_is_a_prompt_and_the_end_is_exit_code_0(run):
    """B156"""
    done = run(stdin="say one\n\nsay two")
    assert (done.stdout, done.code) == ("one\ntwo\n", 0)


def test_empty_input_ends_at_once(run):
    """B156"""
    done = run()
    assert (done.stdout, done.code) == ("", 0) and "Traceback" not in done.stderr


def test_brackets_are_never_markup(run):
    """B152"""
    text = "see [/usr/lib] [bold] [/] [red"
    done = run(stdin=f"say {text}\n{text}\nbash echo '{text}'", *["--yes"])
    assert text in done.stdout and text in done.stderr and "Traceback" not in done.stderr


def test_the_program_as_a_process(tmp_path):
    """B159, B156: no escape bytes in a pipe, a closed pipe and /dev/null end it quietly."""
    environment = {**os.environ, "FORCE_COLOR": "1", "TERM": "xterm"}
    piped = Program(S01, "-p", "bash echo hi ;; say **Done.**", "--yes", folder=tmp_path, environment=environment)
    reading, writing = os.pipe()
    os.close(reading)
    closed = Program(S01, "-p", "say hi", folder=tmp_path, out=writing)
    os.close(writing)
    empty = Program(S01, folder=tmp_path).ended()
    (_, out, err), closed = piped.ended(), closed.ended()
    assert out == "**Done.**\n" and "\x1b" not in err and "hi" in err
    assert closed.code == 1 and closed.err.count("\n") <= 2 and "Broken" not in closed.err
    assert empty.code == 0 and "Traceback" not in empty.err


def test_bytes_that_are_no_text_do_not_poison_the_conversation(run):
    """B154, I1"""
    done = run("-p", "say a\udcffb", "--output-format", "json")
    assert done.code == 0 and json.loads(done.stdout)["result"] == "a?b"


def test_a_python_without_what_is_needed_is_told_which_one_has_it():
    done = subprocess.run([sys.executable, "-S", S01], stdin=subprocess.DEVNULL, capture_output=True, text=True)
    assert done.returncode == 1 and done.stderr.startswith("dotenv is not installed for ") and ".venv/bin/python" in done.stderr
    assert done.stderr.count("\n") == 1


def test_a_command_line_that_cannot_be_served_is_named(run):
    assert run("-p", "x", "--demo").code == 2 and run("--workdir", "gone/away").code == 2


@needs_posix
def test_a_folder_that_is_gone_is_named_at_the_start(run, monkeypatch):
    """B014: somebody removed the folder in which the program is started."""
    Path("gone").mkdir()
    monkeypatch.chdir("gone")
    Path("../gone").resolve().rmdir()
    done = run("-p", "bash echo hi")
    assert done.code == 2 and "not a folder" in done.stderr and "Traceback" not in done.stderr


def test_a_trace_on_a_full_disk_ends_with_one_line(run):
    if not os.path.exists("/dev/full"):
        pytest.skip("needs /dev/full")
    done = run("-p", "say Done.", "--trace", "/dev/full")
    assert done.stdout == "Done.\n" and done.stderr.count("No space left") == 1


# in a terminal ------------------------------------------------------------------------------


@pytest.fixture(scope="module")
def open_terminal(tmp_path_factory):
    """Starts a session in a terminal, waits for its prompt, and ends it with the module."""
    from terminal import Terminal

    opened = []

    def start(*arguments, script=S01, **options):
        folder = tmp_path_factory.mktemp("terminal")
        opened.append(Terminal(script, *arguments, folder=folder, **options))
        opened[-1].folder = folder
        opened[-1].wait_for("s0[12] >> ")
        return opened[-1]

    yield start
    for one in opened:
        one.__exit__()


@pytest.fixture(scope="module")
def asking(open_terminal):
    """One s02 that asks, for all tests that leave it at its prompt."""
    return open_terminal("--trace", "t.jsonl", script=ROOT / "s02_tool_use.py")


@pytest.fixture(scope="module")
def willing(open_terminal):
    """One s01 with --yes, in the C locale, for all tests that leave it at its prompt."""
    return open_terminal("--yes", fresh=True, LANG="C", LC_ALL="C")


@needs_posix
def test_a_python_without_readline_has_a_prompt_too(open_terminal, tmp_path):
    script = tmp_path / "bare.py"
    script.write_text(f"""
import runpy, sys
class Nowhere:
    def find_spec(name, *_):
        if name == "readline":
            raise ImportError(name)
sys.meta_path.insert(0, Nowhere)
sys.path.insert(0, {str(ROOT)!r})
runpy.run_path({str(S01)!r}, run_name="__main__")
""")
    terminal = open_terminal(script=script)
    terminal.type("say I hear you.\r")
    terminal.wait_for(r"I hear you\.(?s:.*)1 turn")
    terminal.type("/quit\r")
    assert terminal.exit_code() == 0


@needs_posix
def test_a_question_is_asked_and_its_answers_obeyed(asking):
    """B112"""
    asking.type("bash echo a > f; cat f ;; bash ls -a ;; bash ls ;; bash touch g ;; say Done.\r")
    asking.wait_for(r"● bash  echo a > f; cat f")
    asking.wait_for(r"allow\? \[y\]es \[n\]o \[a\]lways exactly this: ")
    asking.type("y\r")
    asking.wait_for(r"\[a\]lways ls \*: ")
    asking.type("a\r")
    asking.wait_for(r"always: bash\(ls \*\)")  # the second ls is not asked for
    asking.wait_for(r"● bash  touch g.*\n.*\[a\]lways touch \*: ")
    asking.type("n\r")
    asking.wait_for(r"Done\.(?s:.*)s02 >> ")
    assert (asking.folder / "f").exists() and not (asking.folder / "g").exists()


@needs_posix
def test_the_diff_of_an_edit_is_shown_before_it_is_asked_for(asking):
    (asking.folder / "a.txt").write_text("red\n")
    asking.type("edit a.txt :: red :: " + "green " * 20 + "\r")
    asking.wait_for(r"- red")
    asking.wait_for(r"\+ green")
    asking.wait_for("allow")
    asking.type("\x04")  # end of input means no
    asking.wait_for("the user said no(?s:.*)s02 >> ")
    assert (asking.folder / "a.txt").read_text() == "red\n"


@needs_posix
def test_what_was_typed_ahead_answers_no_question(asking):
    asking.type("bash sleep 0.4 ;; bash touch made ;; say Done.\r")
    asking.wait_for("allow")
    asking.type("y\r")
    asking.type("say y\r")  # meant for no question: the next one is not there yet
    asking.wait_for(r"touch made\W(?s:.*)allow.*: $")
    asking.type("n\r")
    asking.wait_for(r"Done\.(?s:.*)s02 >> say y(?s:.*)s02 >> ")  # kept as the next prompt
    assert not (asking.folder / "made").exists()


@needs_posix
@pytest.mark.parametrize("typed", [
    "\x1b[200~say one\rsay two\rsay three\x1b[201~\r", "say one\rsay two\rsay three\r",
    "\x1b[200~say one\rsay t\x1b[201~wo\rsay three\x1b[201~\r"], ids=["marked", "plain", "a mark inside"])
def test_a_paste_of_several_lines_is_one_prompt(asking, typed):
    """B155"""
    asking.type(typed)
    asking.wait_for("turn (?s:.*)s02 >> ")
    events = [json.loads(line) for line in (asking.folder / "t.jsonl").read_text(encoding="utf-8").splitlines()]
    assert [event["text"] for event in events if event["kind"] == "user"][-1] == "say one\nsay two\nsay three"


@needs_posix
def test_a_paste_during_a_turn_is_the_next_prompt_as_a_whole_and_no_mark_reaches_the_terminal(willing):
    """B155: the terminal is in line mode then; what was typed is shown again, escapes made visible."""
    willing.type("bash touch begun; while [ ! -e go ]; do sleep 0.02; done\r")
    until((willing.folder / "begun").exists)
    willing.type("\x1b[200~say one\r# x\rsay \x1b]0;owned\x07two\x1b[201~\r")
    willing.wait_for("two")  # the echo: it has arrived
    (willing.folder / "go").touch()
    willing.wait_for(r"s01 >> say one *\r\n# x *\r\nsay .*two *\r\n(?s:.*)one *\r\n.*two *\r\n(?s:.*)s01 >> ")
    assert "\x1b[200~" not in willing.seen and "\x1b]0;" not in willing.seen


@needs_posix
def test_brackets_are_never_markup_in_a_terminal_either(willing):
    """B152: in a prompt, in what a tool prints, in an error, in an answer."""
    text = "see [/usr/lib] [bold] [/] [red"
    willing.type(f"bash printf '[%s]b[/%s]' red red ;; bash ls '[/].txt'; echo '{text}' ;; say {text}\r")
    for words in (f"echo '{text}", "[red]b[/red]", "'[/].txt': No such file", text, text, "turns"):
        willing.wait_for(re.escape(words))
    willing.wait_for("s01 >> ")


@needs_posix
def test_tags_and_line_ends_of_an_answer_are_kept(asking):
    asking.type('say "one <b>two</b>\\nvector<int> in <main>"\r')
    asking.wait_for("one <b>two</b>\\W+vector<int> in <main>(?s:.*)s02 >> ")


@needs_posix
def test_ctrl_c_at_a_question_ends_the_line_and_the_prompt_comes_back(asking):
    asking.type("bash touch never\r")
    asking.wait_for(r"allow.*: $")
    asking.interrupt(r"\n.*○ interrupted(?s:.*)s02 >> ")
    assert not (asking.folder / "never").exists()


@needs_posix
def test_slash_commands(asking):
    for command, words in [("/help", "/tools"), ("/tools", r"bash\(command, timeout\)"), ("/nope", "no command /nope"),
                           ("/model", "stand-in"), ("/cost", "no price is known"), ("/clear", "conversation is empty"),
                           ("/context", "0 messages"), ("glob *", "turns"), ("/context", "largest results: glob"), ("", "")]:
        asking.type(command + "\r")
        asking.wait_for(words)
        asking.wait_for("s02 >> ")


@needs_posix
def test_ctrl_c_stops_the_tool_and_the_next_prompt_works(willing):
    """B134, I9"""
    willing.type(f"bash echo begun; sleep {SLEEPER}\r")
    until(lambda: SLEEPER in processes())
    willing.interrupt("interrupted(?s:.*)s01 >> ")
    until(lambda: SLEEPER not in processes())
    willing.type("say Still here.\r")
    willing.wait_for("Still here.(?s:.*)turn(?s:.*)s01 >> ")


@needs_posix
def test_backspace_removes_one_wide_character(willing):
    """B154"""
    willing.type("say 你好吗\x7f😀\x7f!\r")
    willing.wait_for(r"你好!\s(?s:.*)s01 >> ")


@needs_posix
def test_escapes_in_tool_output_do_not_reach_the_terminal(willing):
    willing.type("bash printf '\\033]0;owned\\007\\033[2Jhostile\\n'\r")
    willing.wait_for("hostile(?s:.*)turns(?s:.*)s01 >> ")
    assert "\x1b]0;" not in willing.seen and "\x1b[2J" not in willing.seen


@needs_posix
def test_a_background_child_ends_with_the_program(willing):
    """I9"""
    willing.type(f"bash sleep {SLEEPER} >/dev/null 2>&1 & echo started\r")
    willing.wait_for("started(?s:.*)turns(?s:.*)s01 >> ")
    assert SLEEPER in processes()
    willing.type("/quit\r")
    assert willing.exit_code() == 0 and willing.settings_kept()
    until(lambda: SLEEPER not in processes())


@needs_posix
def test_ctrl_c_twice_at_the_prompt_leaves(open_terminal):
    """B133"""
    t = open_terminal()
    t.type("words")
    t.wait_for("words")
    t.interrupt("again(?s:.*)s01 >> ")
    t.type("words")
    t.wait_for("words")
    assert t.exit_code(number=signal.SIGINT) == 130 and t.settings_kept()


@needs_posix
@pytest.mark.parametrize("typed, answer", [("\x04", ""), ("say Bye.\r\x04", "Bye(?s:.*)1 turn")], ids=["alone", "behind a prompt"])
def test_end_of_input_leaves_when_what_came_before_it_is_answered(open_terminal, typed, answer):
    t = open_terminal()
    t.type(typed)
    t.wait_for(answer)
    assert t.exit_code() == 0 and t.settings_kept()


@needs_posix
@pytest.mark.parametrize("moment", ["prompt", "question", "tool"])
def test_sigterm_leaves_a_sane_terminal_and_no_process(open_terminal, moment):
    """B133, I9"""
    t = open_terminal(*["--yes"] * (moment == "tool"))
    if moment != "prompt":
        t.type(f"bash sleep {SLEEPER} & sleep {SLEEPER}\r")
        t.wait_for("● bash" if moment == "tool" else "allow")
    if moment == "tool":
        until(lambda: SLEEPER in processes())
    assert t.exit_code(number=signal.SIGTERM) == 143 and t.settings_kept()
    until(lambda: SLEEPER not in processes())


@needs_posix
@pytest.mark.parametrize("environment", [
    {"columns": 10, "lines": 3, "NO_COLOR": "1"}, {"columns": 0, "lines": 0, "TERM": "dumb"}])
def test_any_width_shows_all_and_no_style_where_none_is_wanted(open_terminal, environment):
    """B159, B160, an API failure that keeps the conversation, and B156: a window that is closed ends it"""
    t = open_terminal("--yes", OFFLINE_FAULTS="ok,401", **environment)
    t.type("bash echo 长长长长长长长长长长长长 x ;; say alpha beta **gamma** delta epsilon\r")
    t.wait_for("✗ (?s:.*)401(?s:.*)s01 >> ")
    t.type("go on\r")
    t.wait_for("epsilon(?s:.*)s01 >> ")
    assert "Traceback" not in t.seen and not re.search(r"\x1b\[[0-9;]*m", t.seen)
    assert t.hang_up() == 128 + signal.SIGHUP


# pieces -------------------------------------------------------------------------------------


def test_the_meter_counts_what_the_api_reports(stand_in):
    meter = screen.Meter()
    usage = {"input_tokens": 900, "cache_read_input_tokens": 2000, "cache_creation_input_tokens": 100, "output_tokens": 74}
    meter.on_reply({"agent": "main", "model": "claude-sonnet-5-5", "window": 1_000_000, "usage": usage})
    assert meter.line(meter.turn) == "1 turn · context 3.1k of 1M · in 3k (2k cached) · out 74 · $0.0032"
    assert core.cost("claude-sonnet-5-5", usage) == pytest.approx((900 + 125 + 200) * 2e-6 + 74 * 1e-5)


@pytest.mark.parametrize("environment, colored", [
    ({}, True), ({"NO_COLOR": ""}, True), ({"NO_COLOR": "1"}, False), ({"NO_COLOR": "0"}, False),
    ({"TERM": "dumb", "FORCE_COLOR": "1"}, False)], ids=str)
def test_colour_is_for_terminals_that_want_it(environment, colored, monkeypatch):
    """B159"""
    for name, value in {"TERM": "xterm", **environment}.items():
        monkeypatch.setenv(name, value)
    terminal, pipe = Tty(), io.StringIO()
    for file in (terminal, pipe):
        screen.Screen(file).listen({"kind": "error", "text": "it broke"})
    assert ("\x1b[31m" in terminal.getvalue()) is colored and "\x1b[3" not in pipe.getvalue()


@pytest.mark.parametrize("columns", ["20", "1", "0"])
def test_in_any_width_nothing_is_cut_without_a_mark(columns, monkeypatch):
    """B160"""
    monkeypatch.setenv("COLUMNS", columns)
    monkeypatch.setenv("TERM", "dumb")
    file, text = Tty(), "长" * 60 + "end"
    shown = screen.Screen(file)
    shown.listen({"kind": "error", "text": text})
    assert "".join(file.getvalue().split()) == f"✗{text}"
    file.truncate(0)
    shown.listen({"kind": "tool_call", "name": "bash", "input": {"command": text}})
    assert "…" in file.getvalue() and "end" not in file.getvalue()


def test_why_a_call_failed_has_three_rows_and_a_result_one_for_each_line(monkeypatch):
    monkeypatch.setenv("COLUMNS", "40")
    monkeypatch.setenv("TERM", "dumb")
    file, long, longer = Tty(), "word " * 15 + "end", "word " * 25 + "end"
    shown = screen.Screen(file)
    for text, error, whole in ((long, True, True), (longer, True, False), (long, False, False)):
        file.truncate(0)
        shown.listen({"kind": "tool_result", "content": text, "is_error": error})
        assert ("end" in file.getvalue()) is whole and ("…" in file.getvalue()) is not whole


@pytest.mark.parametrize("number, text", [(0, "0"), (999, "999"), (1000, "1k"), (1149, "1.1k"), (99_600, "100k"),
                                          (200_000, "200k"), (999_600, "1M"), (1_250_000, "1.2M")])
def test_short_counts(number, text):
    assert screen.short(number) == text


def test_looking_at_the_context_changes_nothing(workspace, stand_in):
    """/context must not shorten a full conversation, nor ask the model for a summary."""
    agent = Compacting(workspace, context_window=2_000)
    messages = [{"role": role, "content": "words " * 2_000} for role in ("user", "assistant", "user")]
    before = json.dumps(messages)
    assert "3 messages" in screen.context_report(agent, messages, 0)
    assert json.dumps(messages) == before and stand_in.requests == []


def test_the_spinner_turns_on_below_what_is_said_meanwhile(monkeypatch):
    """A retry, or another agent's line: the model is still waited for."""
    monkeypatch.setenv("TERM", "xterm-256color")
    terminal = io.StringIO()
    monkeypatch.setattr(terminal, "isatty", lambda: True, raising=False)
    shown = screen.Screen(terminal)
    shown.listen({"kind": "request", "agent": "main"})
    shown.listen({"kind": "notice", "agent": "main", "text": "Overloaded; trying again"})
    until(lambda: re.search("trying again.*[\u2801-\u28ff]", terminal.getvalue(), re.DOTALL))
    shown.listen({"kind": "reply", "agent": "main", "content": []})
    assert shown.status is None


def test_a_fault_in_rendering_loses_nothing(workspace, stand_in):
    def broken(event):
        raise RuntimeError("cannot draw")

    core.listeners.append(broken)
    messages = [{"role": "user", "content": "bash echo hi ;; say Done."}]
    assert Agent(workspace, core.Permissions(mode="yes")).run(messages) == "Done."
