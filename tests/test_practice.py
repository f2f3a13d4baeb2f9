"""Exercises: what is given fails, any right solution passes, and a learner reads plain words whatever happens."""

import ast
import io
import json
import os
import re
import signal
import subprocess
import sys
from contextlib import redirect_stderr, redirect_stdout
from pathlib import Path

import pytest

import practice_carve
import practice_judge
import practice_table
from practice import safely
from practice_carve import Exercise, carved, exercises, functions
from practice_judge import check, complaints, job, prove
from talk import SLEEPER, needs_posix, processes

ROOT = Path(__file__).resolve().parent.parent
ALL = {one.number: one for one in exercises()}
TODO = re.compile(r'( *)raise NotImplementedError\("exercise .*"\)')


def started(folder, *words):
    """A process of practice.py whose files are below a folder."""
    environment = {**os.environ, "COLUMNS": "80", "NO_COLOR": "1"}
    return subprocess.Popen([sys.executable, ROOT / "practice.py", "--folder", folder, *words], cwd=folder.parent, text=True,
                            encoding="utf-8", stdout=subprocess.PIPE, stderr=subprocess.STDOUT, env=environment)


def practice(folder, *words):
    """Exit code and output of a command, in this process; a learner never sees a traceback."""
    output = io.StringIO()
    with pytest.MonkeyPatch.context() as patch, redirect_stdout(output), redirect_stderr(output):
        patch.setenv("COLUMNS", "80")
        patch.setenv("NO_COLOR", "1")
        patch.chdir(folder.parent)
        try:
            code = safely(["--folder", str(folder), *words])
        except SystemExit as end:  # of argparse
            code = end.code
    assert "Traceback" not in output.getvalue()
    return code, output.getvalue()


def ended(process):
    """Exit code and output of a process."""
    output = process.communicate(timeout=60)[0]
    assert "Traceback" not in output
    return process.returncode, output


@pytest.fixture
def folder(tmp_path):
    return tmp_path / "practice"


def solve(folder, number, body):
    """Starts an exercise and writes a body for its function."""
    practice(folder, "start", number)
    file = folder / f"{ALL[number].session}.py"
    text = file.read_text(encoding="utf-8")
    indent = TODO.search(text)[1]
    file.write_text(TODO.sub(lambda _: "\n".join(indent + line for line in body.split("\n")), text), encoding="utf-8")
    return file


RIGHT = """best, hidden = {}, []
for skill in skills:
    if skill.name in best:
        hidden.append((skill, best[skill.name]))
    else:
        best[skill.name] = skill
return {name: best[name] for name in sorted(best)}, hidden"""
UNSORTED = RIGHT.replace("for name in sorted(best)", "for name in best")


@pytest.fixture(scope="module")
def played(demos):
    """The events of each demonstration."""
    files = {session: path / "trace.jsonl" for session, (_, _, path) in demos.items()}
    return {session: [json.loads(line) for line in file.read_text("utf-8").splitlines()] for session, file in files.items()}


@pytest.mark.skipif(not hasattr(os, "fork"), reason="needs fork")
def test_several_demonstrations_are_played_at_once():
    found = practice_judge.traces(["s01_agent_loop", "s02_tool_use"])
    assert [{event["kind"] for event in found[name]} >= {"user", "stop"} for name in found] == [True, True]


def test_every_exercise_proves_itself(folder, monkeypatch, played):
    """What is given fails by a judgement, as does a mend that breaks more; every original passes, every question has
    an answer."""
    monkeypatch.setattr(practice_judge, "traces", lambda sessions: {name: played[name] for name in sessions})
    code, output = practice(folder, "verify")
    assert code == 0, output
    assert f"{len(ALL)} exercises, 0 problems" in output


# ---------------------------------------------------------------- what is given


@pytest.mark.parametrize("one", [one for one in ALL.values() if one.kind == "fill in"], ids=lambda one: one.number)
def test_a_carved_file_differs_from_the_session_in_one_body_only(one):
    given, original = functions(carved(one)), functions(one.original.read_text(encoding="utf-8"))
    assert given.keys() == original.keys()
    changed = [name for name in given if ast.dump(given[name]) != ast.dump(original[name])]
    assert changed == [one.function]
    ours, theirs = given[one.function], original[one.function]
    assert ast.get_docstring(ours) == ast.get_docstring(theirs) and ast.dump(ours.args) == ast.dump(theirs.args)
    assert f"# exercise {one.number}:" in carved(one) and "# hint:" not in carved(one)


@pytest.mark.parametrize("number", practice_table.BUGS)
def test_a_file_with_a_bug_does_not_point_at_it(number):
    given, one = carved(ALL[number]), ALL[number]
    assert practice_table.BUGS[number].new in given and "# hint:" not in given and "# exercise " not in given.split("\n", 1)[1]
    assert one.original.read_text(encoding="utf-8").count(practice_table.BUGS[number].old) == 1


def test_marks_over_several_lines_are_read_whole(tmp_path):
    file = tmp_path / "s01_agent_loop.py"
    file.write_text('def f(a):\n    """Doc."""\n    # exercise 1.9: do\n    # this\n    # hint: first\n    # and on\n    # hint: last\n'
                    "    return a\n")
    one = practice_carve.marked(file)[0]
    assert (one.task, one.hints, one.function) == ("do this", ("first and on", "last"), "f")


def test_an_exercise_without_a_choice_of_tests_is_judged_by_those_that_name_its_function():
    named = practice_carve.tests_naming("s06_compact", "plan_cut")
    assert "the_newest_step_is_kept_however_large_it_is" in named and "memory_can_be_shown_and_removed" not in named


# ---------------------------------------------------------------- complaints of verify


def test_verify_names_exercises_that_are_not_sound():
    good = ALL["2.1"]
    twin = Exercise("2.1", good.session, "fill in", "", (), (), good.function)
    other = Exercise("7.1", "s06_compact", "fill in", "task", ("hint",), ("x",))
    found = complaints([good, twin, other])
    for words in ("2.1: there are two", "2.1: no hints", "2.1: no task", "2.1: no tests", "s06_compact: only one exercise",
                  "7.1: the number is not one of s06_compact"):
        assert any(text.startswith(words) for text in found), words


def test_verify_names_a_file_that_passes_as_it_is_given_and_tests_that_do_not_exist(tmp_path):
    blind = Exercise("2.1", "s02_tool_use", "fill in", "t", ("h",), ("the_loop_is_the_one_of_s01",), "definitions")
    assert prove([blind], tmp_path) == ["2.1: what a learner is given passes its tests"]
    missing = Exercise("2.1", "s02_tool_use", "fill in", "t", ("h",), ("no_such_test",), "definitions")
    assert [text.split(":")[0] for text in prove([missing], tmp_path)] == ["s02_tool_use", "2.1"]


# ---------------------------------------------------------------- a learner's way


def test_the_first_look_says_what_there_is_and_where_to_begin(folder):
    code, output = ended(started(folder))
    assert code == 0 and f"0 of {len(ALL)} exercises solved" in output and "python practice.py start 1.1" in output
    assert all(f"{number} ·" in output for number in ALL) and not folder.exists()


def test_from_start_to_success(folder):
    code, output = practice(folder, "start", "5.1")
    assert code == 0 and "write nearest" in output and "s05_skills.py, line " in output
    code, output = practice(folder, "check")
    assert code == 1 and "of equal names the first wins and the others are told" in output and "still to be written" in output
    file = solve(folder, "5.2", "pass").with_name("s05_skills.py")
    assert "exercise 5.2" in file.read_text(encoding="utf-8").split("\n")[0]
    practice(folder, "start", "5.1")
    file.write_text(TODO.sub(lambda _: "    return nothing", file.read_text(encoding="utf-8")), encoding="utf-8")
    code, output = practice(folder, "check", "5.1")
    line = file.read_text(encoding="utf-8").split("\n").index("    return nothing") + 1
    assert code == 1 and "NameError" in output and f"line {line}" in " ".join(output.split())
    practice(folder, "reset", "5.1")
    solve(folder, "5.1", RIGHT)
    code, output = practice(folder, "check")
    assert code == 0 and "5.1  ✓ right" in output and "start 5.2" in output and "Skilled.refresh_skills" in output
    assert json.loads((folder / "progress.json").read_text())["5.1"]["passed"] is True


def test_a_wrong_solution_is_shown_with_input_expected_and_got(folder):
    solve(folder, "5.1", "print('I see', len(skills))\n" + UNSORTED)
    code, output = practice(folder, "check")
    assert code == 1 and "This should hold, and does not yet" in output
    assert re.search(r"input +nearest\(\[Skill\(", output)
    assert re.search(r"expected +\['abc', 'pdf'\]\n +got +\['pdf', 'abc'\]", output)
    assert "chosen, hidden = nearest([near, far, other])" in output and "I see 3" in output


OTHER_WORDS = """if not 1 <= index <= len(plan):
    raise core.ToolError(f"No task {index}")
back = {"in_progress": "pending"} if status == "in_progress" else {}
changed = [{**task, "status": back.get(task["status"], task["status"])} for task in plan]
changed[index - 1]["status"] = "done" if status == "completed" else status
return changed"""


@pytest.mark.parametrize("body, expected, got", [
    (OTHER_WORDS, "an error that says '?no task 0; the tasks are 1 to 2", "No task 0"),
    ("return None", r"that this holds: statuses\(set_status", "None"),
    ("breakpoint()\nreturn plan", r"that this holds|\['done'\]", "pending")])
def test_what_a_test_wanted_is_named_whatever_went_wrong(folder, body, expected, got):
    solve(folder, "3.1", body)
    code, output = practice(folder, "check")
    assert code == 1 and re.search(rf"expected +({expected})", output) and re.search(rf"got +.*{got}", output)


@pytest.mark.parametrize("text, words", [
    (b"# exercise 2.1: x\ndef f(:\n", "this is no Python yet"), (b"# exercise 2.1: x\n\xff\xfe\n", "this is no Python yet"),
    (b"# exercise 2.1: x\nimport nowhere\n", "No module named 'nowhere'"), (b"# exercise 2.1: x\n", "definitions"),
    (b"# exercise 2.1: x\nraise SystemExit\n", "SystemExit")])
def test_a_file_that_cannot_be_imported_is_explained(folder, text, words):
    practice(folder, "start", "2.1")
    (folder / "s02_tool_use.py").write_bytes(text)
    code, output = practice(folder, "check", "2.1")
    assert code == 1 and words in output and "next  mend" in output


def test_an_endless_loop_is_stopped_and_its_line_named(tmp_path):
    one, file = ALL["2.1"], tmp_path / "given.py"
    file.write_text(TODO.sub(r"\1while True:\n\1    __import__('time').sleep(0.01)", carved(one)), encoding="utf-8")
    failure = check([job(one, file, seconds=1)])[0]["failure"]
    line = file.read_text(encoding="utf-8").split("\n").index("    while True:") + 1
    assert failure["kind"] == "endless" and failure["line"] in (line, line + 1)


@needs_posix
def test_what_a_learners_code_starts_ends_with_the_check(tmp_path):
    one, file = ALL["2.1"], tmp_path / "given.py"
    file.write_text(f"import os, subprocess\nsubprocess.Popen(['sleep', '{SLEEPER}'])\nos._exit(0)\n", encoding="utf-8")
    assert check([job(one, file)])[0]["failure"]["kind"] == "ended"
    assert SLEEPER not in processes()


def test_hints_come_one_by_one_and_the_original_only_at_the_end(folder):
    file = solve(folder, "5.2", "return 'x'")
    assert "hint 1 of 2" in practice(folder, "hint")[1] and "hint 2 of 2" in practice(folder, "hint")[1]
    assert practice(folder, "hint")[1].count("hint ") == 2
    code, output = practice(folder, "diff")
    assert code == 2 and "after 3 more tries" in output and "LISTING_REST" not in output
    known = json.loads((folder / "progress.json").read_text())
    (folder / "progress.json").write_text(json.dumps(known | {"5.2": {"tries": 3}}))
    code, output = practice(folder, "diff")
    assert code == 0 and "return 'x'" in output and "for described in range" in output and file.is_file()


def test_a_bug_is_shown_with_the_mend_beside_it(folder):
    practice(folder, "start", "5.3")
    (folder / "progress.json").write_text(json.dumps({"5.3": {"passed": True}}))
    file = folder / "s05_skills.py"
    file.write_text(file.read_text(encoding="utf-8").replace("if self.skill_files:", "if self.skill_files == files:"), encoding="utf-8")
    output = practice(folder, "diff", "5.3")[1]
    assert "-        if self.skill_files:" in output and "+        if files == self.skill_files:" in output
    assert "+        if self.skill_files == files:" in output


def test_nothing_that_was_written_gets_lost(folder):
    file = solve(folder, "5.1", RIGHT)
    own = file.read_text(encoding="utf-8")
    code, output = practice(folder, "start", "5.2")
    assert "5.1 is kept" in output and "exercise 5.2" in file.read_text(encoding="utf-8")
    assert practice(folder, "check", "5.1")[0] == 0
    practice(folder, "start", "5.1")
    assert file.read_text(encoding="utf-8") == own
    practice(folder, "start", "5.1")
    assert file.read_text(encoding="utf-8") == own
    practice(folder, "reset", "5.1")
    [old] = folder.glob("s05_skills.py.before-*")
    assert old.read_text(encoding="utf-8") == own and TODO.search(file.read_text(encoding="utf-8"))


def test_a_prediction_is_compared_with_a_run(folder, tmp_path, monkeypatch, played):
    other = tmp_path / "other"
    monkeypatch.setattr(practice_judge, "traces", lambda sessions: {name: played[name] for name in sessions})
    right, wrong = practice(folder, "check", "1.4", "It holds 7."), practice(other, "check", "1.4", "8")
    assert right[0] == 0 and "✓ right" in right[1]
    assert wrong[0] == 1 and "you said  8" in wrong[1] and "7" not in wrong[1].replace("python3.", "")
    assert (folder / "1.4.txt").read_text().endswith("answer: It holds 7.\n")


def test_a_class_is_graded_as_json_and_nothing_is_remembered(folder):
    solve(folder, "5.1", RIGHT)
    solve(folder, "6.2", "return 0")
    before = (folder / "progress.json").read_bytes()
    code, output = practice(folder, "check", "--json")
    report = json.loads(output)
    assert code == 1 and (report["passed"], report["of"]) == (1, len(ALL))
    by_number = {one["number"]: one for one in report["exercises"]}
    assert by_number["5.1"]["passed"] and by_number["5.1"]["failure"] is None
    assert by_number["6.2"]["failure"]["kind"] == "wrong" and by_number["6.2"]["failure"]["behaviour"]
    assert by_number["1.1"]["failure"]["kind"] == "not started"
    assert (folder / "progress.json").read_bytes() == before


@pytest.mark.parametrize("words, answer", [
    (["start", "9.99"], "there is no exercise 9.99"), (["check"], "nothing is started yet"), (["check", "1.1"], "is not started"),
    (["run", "1.1"], "is not started"), (["diff", "1.1"], "is not solved yet"), (["check", "5.1", "7"], "is no question"),
    (["dance"], "invalid choice"), (["hint", "nonsense"], "there are 1.1, 1.2")])
def test_what_cannot_be_done_is_answered_with_what_can(folder, words, answer):
    code, output = practice(folder, *words)
    assert code == 2 and answer in " ".join(output.split())


def test_without_pytest_the_learner_is_told_what_to_install(folder):
    practice(folder, "start", "5.1")
    done = subprocess.run([sys.executable, "-S", ROOT / "practice.py", "--folder", folder, "check"], capture_output=True, text=True)
    assert done.returncode == 1 and "pytest is not" in done.stdout and "pip install -e '.[test]'" in done.stdout


def test_a_damaged_progress_file_is_set_aside(folder):
    solve(folder, "5.1", RIGHT)
    (folder / "progress.json").write_text("{")
    code, output = practice(folder, "check", "5.1")
    assert code == 0 and "progress.json.damaged" in output
    assert json.loads((folder / "progress.json").read_text())["5.1"]["passed"]


@needs_posix
def test_watch_judges_at_each_save_and_ends_with_success_or_ctrl_c(folder):
    file = solve(folder, "5.1", UNSORTED)
    process = started(folder, "watch")
    read = iter(process.stdout.readline, "")
    assert any("5.1  ✗ not yet" in line for line in read) and any("Ctrl-C ends" in line for line in read)
    solved = file.with_name("new")  # as an editor saves: written anew, then renamed
    solved.write_text(file.read_text(encoding="utf-8").replace("for name in best}", "for name in sorted(best)}"), encoding="utf-8")
    solved.replace(file)
    assert any("✓ right" in line for line in read) and process.wait(20) == 0
    solve(folder, "5.2", "return (")  # no Python: judged at once
    process = started(folder, "watch")
    assert any("Ctrl-C ends" in line for line in iter(process.stdout.readline, ""))
    process.send_signal(signal.SIGINT)
    assert "Traceback" not in process.communicate(timeout=20)[0] and process.returncode == 130


def test_run_plays_the_learners_file_as_the_session(folder, monkeypatch):
    practice(folder, "start", "2.1")
    code, output = ended(started(folder, "run", "2.1", "--help"))
    assert code == 0 and "s02 · tool use" in output


def test_everything_fits_a_terminal_of_80_columns_and_is_plain_in_a_pipe(folder):
    pages = [practice(folder), practice(folder, "start", "6.1"), practice(folder, "check"), practice(folder, "hint"),
             practice(folder, "start", "2.3"), practice(folder, "start", "6.4"), practice(folder, "--help")]
    for _, output in pages:
        prose, _, test = output.partition("has it:")
        assert "\x1b" not in output and all(len(line) <= 80 for line in prose.split("\n")), output
