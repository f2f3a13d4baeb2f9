"""Worktrees: agents side by side, and nothing that existed is ever lost, whatever state the trees are in."""

import hashlib
import json
import os
import random
import re
import shutil
import signal
import subprocess
import threading
from pathlib import Path

import pytest

import core
import s12_worktrees
from s01_agent_loop import Agent
from s07_task_graph import TaskGraph
from s12_worktrees import Branching, Repository, Worker, free_branch, is_own, parse_worktrees, place, safe_name, uncommitted
from talk import SLEEPER, accepted, outputs, played, processes, results

IDENTITY = ("-c", "user.name=Ann", "-c", "user.email=ann@example.org", "-c", "protocol.file.allow=always")


def run(folder, *arguments, fails=False):
    """git as a user would call it, without any help of the session's own functions."""
    done = subprocess.run(["git", *IDENTITY, *arguments], cwd=folder, capture_output=True, text=True, check=False)
    assert fails or done.returncode == 0, done.stderr
    return done.stdout.strip()


@pytest.fixture(scope="session")
def template(tmp_path_factory):
    """A repository with one commit: a.txt, b.txt and a rule that ignores *.log."""
    folder = tmp_path_factory.mktemp("template")
    run(folder, "init", "--quiet", "--initial-branch=main")
    for name, text in {"a.txt": "one\ntwo\nthree\n", "b.txt": "b\n", ".gitignore": "*.log\n__pycache__/\n"}.items():
        (folder / name).write_text(text)
    run(folder, "add", "--all")
    run(folder, "commit", "--quiet", "--message=Start")
    return folder


@pytest.fixture
def tree(template, tmp_path):
    """A copy of it, in a folder whose name has spaces and letters beyond ASCII."""
    folder = tmp_path / "ein Ördner mit 空白"
    shutil.copytree(template, folder)
    return folder.resolve()


@pytest.fixture
def repository(tree):
    return Repository(tree)


@pytest.fixture
def lead(tree, stand_in):
    return Branching(core.Workspace(tree), permissions=core.Permissions(mode="yes"))


def commit_in(path, name="new.txt", text="new\n"):
    (path / name).write_text(text)
    run(path, "add", "--all")
    run(path, "commit", "--quiet", f"--message=Add {name}")
    return run(path, "rev-parse", "HEAD")


def in_worktrees(*tasks):
    return f"run_in_worktrees {json.dumps({'tasks': tasks})}"


def first_output(agent, script):
    """The result of the first call of a script, as text."""
    return outputs(played(agent, script))[0]


# names ------------------------------------------------------------------------------------------------


def test_an_id_is_its_own_name():
    assert [safe_name(task) for task in ("t1", "t12", "fix_it", "a-b")] == ["t1", "t12", "fix_it", "a-b"]


@pytest.mark.parametrize("task, start", [
    ("Fix the login", "fix-the-login-"), ("# A title\nand more", "a-title-"), ("修复登录", "修复登录-"), ("Größe", "größe-"),
    ("../../etc/passwd", "etc-passwd-"), ("x.lock", "x-lock-"), ("-rf", "rf-"), ("con", "con-"), ("COM1", "com1-"),
    ("head", "head-"), ("create", "create-"), ("🙂", "task-"), ("T1", "t1-"), ("x" * 500, "x" * 32 + "-"), ("a~^:?*[\\", "a-")])
def test_a_description_becomes_words_and_a_digest(task, start):
    assert re.fullmatch(re.escape(start) + "[0-9a-f]{6}", safe_name(task))


def test_tasks_that_begin_alike_or_differ_in_case_have_different_names():
    tasks = ["Fix it!", "Fix it?", "fix it!", "Fix the bug in " + "x" * 80, "Fix the bug in " + "x" * 81]
    assert len({safe_name(task).casefold() for task in tasks}) == len(tasks)


def test_every_name_is_a_valid_branch_and_a_plain_folder():
    letters = "aZ9 ./\\~^:?*[]@{}-_\n\t\x7f\x00é空🙂\ud800'\"$"
    chance = random.Random(12)
    for _ in range(300):
        name = safe_name("".join(chance.choices(letters, k=chance.randint(1, 60))))
        assert re.fullmatch(r"\w[\w-]*", name) and len(name.encode()) < 200 and safe_name(name) == name or not name.isascii()
        assert not re.search(r"\.\.|[~^:?*\[\\\s@{/.]", name)


@pytest.mark.parametrize("branches, expected", [
    ([], "task/t1"), (["main", "task/t10"], "task/t1"), (["task/t1"], "task/t1-2"), (["task/t1", "task/t1-2"], "task/t1-3"),
    (["task"], "task-t1"), (["task", "task-t1"], "task-t1-2"), (["task/t1/more"], "task/t1-2"), (["TASK/T1"], "task/t1-2")])
def test_a_branch_name_that_is_taken_gets_a_suffix(branches, expected):
    """B085"""
    assert free_branch("t1", branches) == expected
    assert is_own("t1", expected)


def test_branches_of_others_are_not_the_tasks_own():
    assert not any(is_own("t1", branch) for branch in ("", "main", "task/t10", "task/t1/x", "task/t1-x", "x/task/t1"))


def test_the_list_of_worktrees_is_parsed_with_any_path():
    output = ("worktree /r\0HEAD 1a\0branch refs/heads/main\0\0worktree /r/h/a b\0HEAD 2b\0branch refs/heads/task/x\0\0"
              "worktree /r/h/ö\nx\0HEAD 3c\0detached\0locked why\0\0worktree /r/h/deep/er\0HEAD 4d\0detached\0\0")
    assert [tuple(found) for found in parse_worktrees(output, Path("/r/h"))] == [
        ("a b", Path("/r/h/a b"), "task/x", "2b"), ("ö\nx", Path("/r/h/ö\nx"), "", "3c")]


def test_what_is_not_committed_is_counted_without_caches():
    assert uncommitted("") == "" == uncommitted("!! x/__pycache__/a.pyc\0!! .pytest_cache/v\0")
    assert uncommitted(" M a\0A  b\0?? c d\0!! e.log\0!! my__pycache__/x\0") == "2 changed, 1 untracked, 2 ignored files"


def test_a_place_names_the_lines_of_the_marks():
    assert place("a.py", "x\n<<<<<<< ours\n=======\n>>>>>>> theirs\n<<<<<<< ours\n") == "a.py (line 2, 5)"
    assert place("a.png", "") == "a.png (as a whole)"


# creating -----------------------------------------------------------------------------------------------


def test_a_worktree_lies_below_agent_on_a_branch_of_its_own_from_head(repository, tree):
    made = repository.create("t1")
    assert made.path == tree / ".agent" / "worktrees" / "t1" and made.branch == "task/t1"
    assert made.tip == run(tree, "rev-parse", "HEAD") and (made.path / "a.txt").read_text() == "one\ntwo\nthree\n"


def test_the_users_git_status_stays_empty(repository, tree):
    repository.create("t1")
    TaskGraph(tree / ".agent" / "tasks").create("x")
    assert run(tree, "status", "--porcelain", "--untracked-files=all") == ""
    assert core.Workspace(tree).grep("three").count("a.txt") == 1


def test_the_agent_finds_the_files_in_its_worktree_with_and_without_ripgrep(repository, monkeypatch):
    workspace = core.Workspace(repository.create("t1").path)
    assert workspace.glob("*.txt").split() == ["a.txt", "b.txt"] and "a.txt:2:two" in workspace.grep("two")
    monkeypatch.setenv("PATH", "")
    assert workspace.glob("*.txt").split() == ["a.txt", "b.txt"] and "a.txt:2:two" in workspace.grep("two")


def test_the_worktree_of_a_task_is_used_again(repository):
    first = repository.create("t1")
    commit_in(first.path)
    (first.path / "draft.txt").write_text("half")
    again = repository.create("t1")
    assert (again.path, again.branch) == (first.path, "task/t1") and (again.path / "draft.txt").read_text() == "half"


def test_a_branch_of_the_user_is_left_alone(repository, tree):
    """B085: the branch exists beforehand, with a commit."""
    run(tree, "switch", "--quiet", "--create", "task/t1")
    commit = commit_in(tree)
    run(tree, "switch", "--quiet", "main")
    assert repository.create("t1").branch == "task/t1-2"
    assert run(tree, "rev-parse", "task/t1") == commit


def test_a_branch_called_task_does_not_prevent_a_worktree(repository, tree):
    """B085: refs/heads/task is a file, so that task/t1 cannot exist."""
    run(tree, "branch", "task")
    assert repository.create("t1").branch == "task-t1"


def test_a_folder_deleted_by_hand_comes_back_with_its_branch_and_what_was_staged(repository, tree):
    """B084: never a fall-back to the main tree."""
    made = repository.create("t1")
    commit = commit_in(made.path)
    (made.path / "staged.txt").write_text("staged")
    run(made.path, "add", "staged.txt")
    shutil.rmtree(made.path)
    again = repository.create("t1")
    assert (again.path, again.branch, again.tip) == (made.path, "task/t1", commit)
    assert (again.path / "staged.txt").read_text() == "staged" and (again.path / "new.txt").exists()
    assert core.Workspace(again.path).bash("git rev-parse --show-toplevel") == str(again.path)
    assert run(tree, "status", "--porcelain") == ""


def test_a_worktree_that_git_has_forgotten_is_made_anew_beside_its_old_branch(repository, tree):
    """B084: deleted by hand, and pruned."""
    commit = commit_in(repository.create("t1").path)
    shutil.rmtree(tree / ".agent" / "worktrees" / "t1")
    run(tree, "worktree", "prune")
    assert repository.create("t1").branch == "task/t1-2" and run(tree, "rev-parse", "task/t1") == commit


def test_a_worktree_whose_git_file_is_gone_keeps_its_files(repository, tree):
    made = repository.create("t1")
    (made.path / "a.txt").write_text("changed")
    (made.path / ".git").unlink()
    assert (repository.find("t1").path / "a.txt").read_text() == "changed"
    assert run(made.path, "rev-parse", "--show-toplevel") == str(made.path)


def test_a_foreign_folder_in_the_way_is_named_and_kept(repository, tree):
    folder = tree / ".agent" / "worktrees" / "t1"
    folder.mkdir(parents=True)
    (folder / "mine.txt").write_text("mine")
    with pytest.raises(core.ToolError, match="already exists"):
        repository.create("t1")
    assert (folder / "mine.txt").read_text() == "mine"


def test_the_main_tree_may_be_on_no_branch(repository, tree):
    run(tree, "checkout", "--quiet", "--detach")
    assert repository.create("t1").tip == run(tree, "rev-parse", "HEAD")


def test_a_workspace_may_be_a_folder_inside_the_repository(tree):
    (tree / "part").mkdir()
    made = Repository(tree / "part").create("t1")
    assert made.path == tree / "part" / ".agent" / "worktrees" / "t1" and (made.path / "a.txt").exists()
    assert run(tree, "status", "--porcelain") == ""


def test_without_a_repository_or_a_commit_or_a_working_tree_the_error_says_what_is_needed(tmp_path, template, lead):
    """B088"""
    for name, command in {"none": None, "empty": ["init"], "bare": ["clone", "--bare", str(template)]}.items():
        (tmp_path / name).mkdir()
        if command:
            run(tmp_path / name, *command, "--quiet", ".")
        with pytest.raises(core.ToolError, match="need a git repository with a commit to start from"):
            Repository(tmp_path / name)
    agent = Branching(core.Workspace(tmp_path / "none"), permissions=core.Permissions(mode="yes"))
    assert "need a git repository" in first_output(agent, in_worktrees("x") + " ;; say Told.")


def test_in_a_submodule_the_worktree_lies_in_its_checkout(tree, template):
    """B088: its .git is a file; the git folder of the superproject stays as it is."""
    run(tree, "submodule", "--quiet", "add", str(template), "lib")
    made = Repository(tree / "lib").create("t1")
    assert made.path == tree / "lib" / ".agent" / "worktrees" / "t1"
    assert run(made.path, "rev-parse", "--show-toplevel") == str(made.path) and run(tree / "lib", "status", "--porcelain") == ""
    commit_in(made.path)
    assert Repository(tree / "lib").merge(Repository(tree / "lib").find("t1")) == "merged task/t1 into main"


def test_submodules_that_are_not_populated_are_named(repository, tree, template, events):
    run(tree, "submodule", "--quiet", "add", str(template), "lib")
    run(tree, "commit", "--quiet", "--message=lib")
    repository.create("t1")
    assert [event["text"] for event in events if event["kind"] == "notice"] == ["t1: the submodules are not populated: ['lib']"]
    assert repository.remove(repository.find("t1")).startswith("removed")


def test_variables_that_name_another_repository_are_not_obeyed(tree, tmp_path, template, monkeypatch):
    other = tmp_path / "other"
    shutil.copytree(template, other)
    for name, value in {"GIT_DIR": ".git", "GIT_WORK_TREE": ".", "GIT_INDEX_FILE": ".git/index"}.items():
        monkeypatch.setenv(name, str(other / value))
    made = Repository(tree).create("t1")
    monkeypatch.undo()
    assert made.path.is_relative_to(tree) and run(other, "branch", "--list", "task/*") == ""


def test_a_lock_of_another_git_process_is_waited_for(repository, tree):
    made = repository.create("t1")
    (made.path / "new.txt").write_text("new")
    lock = Path(run(made.path, "rev-parse", "--absolute-git-dir")) / "index.lock"
    lock.touch()
    threading.Timer(0.15, lock.unlink).start()
    repository.save(made, "Saved")
    assert run(made.path, "log", "-1", "--format=%s") == "Saved"


def test_a_lock_that_stays_is_named(repository, monkeypatch):
    monkeypatch.setattr(s12_worktrees, "LOCK_PAUSE", 0.0001)
    made = repository.create("t1")
    (made.path / "new.txt").write_text("new")
    (Path(run(made.path, "rev-parse", "--absolute-git-dir")) / "index.lock").touch()
    with pytest.raises(core.ToolError, match="index.lock"):
        repository.save(made, "Saved")
    assert (made.path / "new.txt").read_text() == "new"


# committing -----------------------------------------------------------------------------------------------


def test_all_of_a_worktree_is_committed_even_where_no_author_is_configured(repository):
    made = repository.create("t1")
    (made.path / "a.txt").write_text("changed")
    (made.path / "ü x.txt").write_text("new")
    (made.path / "b.txt").unlink()
    repository.save(made, "Ünïcode")
    assert subprocess.run(["git", "log", "-1", "--format=%s|%an|%ae"], cwd=made.path, capture_output=True, check=True
                          ).stdout.decode() == "Ünïcode|agent|agent@localhost\n"
    assert repository.held(made.path) == "" and repository.changed(repository.find("t1")) == ["a.txt", "b.txt", "ü x.txt"]


def test_a_configured_author_is_kept(repository, tree):
    run(tree, "config", "user.name", "Ann")
    made = repository.create("t1")
    (made.path / "a.txt").write_text("changed")
    repository.save(made, "Work")
    assert run(made.path, "log", "-1", "--format=%an|%ae") == "Ann|agent@localhost"


def test_what_was_staged_and_then_changed_again_is_kept_too(repository):
    made = repository.create("t1")
    for text, command in (("first", ["add", "a.txt"]), ("second", ["status"])):
        (made.path / "a.txt").write_text(text)
        run(made.path, *command)
    repository.save(made, "Work")
    assert [run(made.path, "show", f"{commit}:a.txt") for commit in ("HEAD^", "HEAD")] == ["first", "second"]


def test_nothing_to_commit_makes_no_commit(repository):
    made = repository.create("t1")
    repository.save(made, "Nothing")
    assert repository.own_commits(made) == 0


def test_hooks_neither_stop_nor_change_a_commit(repository, tree):
    hook = tree / ".git" / "hooks" / "pre-commit"
    hook.parent.mkdir(exist_ok=True)
    hook.write_text("#!/bin/sh\nexit 1\n")
    hook.chmod(0o755)
    made = repository.create("t1")
    (made.path / "new.txt").write_text("new")
    repository.save(made, "Work")
    assert repository.own_commits(made) == 1


def test_work_on_a_branch_of_the_user_is_not_committed_there(repository, tree):
    run(tree, "branch", "feature")
    made = repository.create("t1")
    run(made.path, "switch", "--quiet", "feature")
    (made.path / "new.txt").write_text("new")
    with pytest.raises(core.ToolError, match="is on feature instead of its own"):
        repository.save(made, "Work")
    assert run(tree, "rev-parse", "feature") == run(tree, "rev-parse", "main") and (made.path / "new.txt").exists()


def test_a_worktree_that_lost_its_git_file_never_commits_to_the_main_tree(repository, tree):
    made = repository.create("t1")
    (tree / "mine.txt").write_text("not yours")
    (made.path / ".git").unlink()
    with pytest.raises(core.ToolError):
        repository.save(made, "Work")
    with pytest.raises(core.ToolError, match="not a git repository"):
        s12_worktrees.git(made.path, "add", "--all")
    assert run(tree, "log", "--format=%s") == "Start" and run(tree, "status", "--porcelain") == "?? mine.txt"


# removing -----------------------------------------------------------------------------------------------


def test_a_dirty_worktree_is_not_removed_and_the_counts_are_told(repository):
    """B082"""
    made = repository.create("t1")
    (made.path / "a.txt").write_text("changed")
    (made.path / "new.txt").write_text("new")
    with pytest.raises(core.ToolError, match="1 changed, 1 untracked, 0 ignored files.*discard"):
        repository.remove(made)
    assert (made.path / "a.txt").read_text() == "changed" and (made.path / "new.txt").exists()
    assert "which was at" in repository.remove(made, discard=True) and not made.path.exists()


def test_ignored_files_are_work_too_but_caches_are_not(repository):
    made = repository.create("t1")
    (made.path / "__pycache__").mkdir()
    (made.path / "__pycache__" / "x.pyc").write_bytes(b"x")
    (made.path / "data.log").write_text("precious")
    with pytest.raises(core.ToolError, match="1 ignored"):
        repository.remove(made)
    (made.path / "data.log").unlink()
    assert repository.remove(made).startswith("removed") and not made.path.exists()


def test_commits_that_are_nowhere_else_keep_their_branch(repository, tree):
    """B083"""
    made = repository.create("t1")
    commit = commit_in(made.path)
    told = repository.remove(repository.find("t1"))
    assert "task/t1 stays, for commits that are nowhere else: 1 (" in told and not made.path.exists()
    assert run(tree, "rev-parse", "task/t1") == commit


def test_a_merged_branch_goes_with_its_worktree(repository, tree):
    commit_in(repository.create("t1").path)
    repository.merge(repository.find("t1"))
    repository.remove(repository.find("t1"))
    assert run(tree, "branch", "--list", "task/*") == "" and (tree / "new.txt").exists()


def test_discard_deletes_the_commits_and_tells_where_they_were(repository, tree):
    """B083: they can be fetched back from there until git collects them."""
    commit = commit_in(repository.create("t1").path)
    assert commit in repository.remove(repository.find("t1"), discard=True)
    assert run(tree, "branch", "--list", "task/*") == ""


def test_commits_on_no_branch_keep_the_worktree(repository):
    made = repository.create("t1")
    run(made.path, "checkout", "--quiet", "--detach")
    commit_in(made.path)
    with pytest.raises(core.ToolError, match="commits on no branch"):
        repository.remove(repository.find("t1"))
    assert (made.path / "new.txt").exists()


def test_a_tag_of_the_same_name_confuses_nothing(repository, tree):
    run(tree, "tag", "task/t1")
    made = repository.create("t1")
    (made.path / "new.txt").write_text("new")
    repository.save(made, "Work")
    assert "commits that are nowhere else: 1 (" in repository.remove(repository.find("t1"))


def test_a_locked_worktree_stays_even_with_discard(repository, tree):
    made = repository.create("t1")
    run(tree, "worktree", "lock", str(made.path))
    for discard in (False, True):
        with pytest.raises(core.ToolError, match="locked"):
            repository.remove(made, discard)
    assert (made.path / "a.txt").exists()


def test_a_branch_of_the_user_in_a_worktree_is_never_deleted(repository, tree):
    run(tree, "branch", "feature")
    made = repository.create("t1")
    run(made.path, "switch", "--quiet", "feature")
    repository.remove(repository.find("t1"), discard=True)
    assert run(tree, "branch", "--list", "feature", "task/t1").split() == ["feature", "task/t1"]


def test_a_repository_inside_a_worktree_is_not_deleted(repository):
    made = repository.create("t1")
    run(made.path, "init", "--quiet", "nested")
    commit_in(made.path / "nested")
    repository.save(made, "Work")
    with pytest.raises(core.ToolError, match="submodules cannot be"):
        repository.remove(repository.find("t1"))
    assert (made.path / "nested" / "new.txt").exists()


def test_a_worktree_in_which_an_agent_works_is_not_removed(repository):
    made = repository.create("t1")
    with core.locked(made.path), pytest.raises(TimeoutError, match="locked by another"):
        repository.remove(made, discard=True)
    assert made.path.exists()


# merging ------------------------------------------------------------------------------------------------


def test_a_clean_merge_moves_the_main_tree_and_makes_a_merge_commit(repository, tree):
    commit_in(repository.create("t1").path)
    commit_in(tree, "other.txt")
    assert repository.merge(repository.find("t1")) == "merged task/t1 into main"
    assert (tree / "new.txt").exists() and run(tree, "status", "--porcelain") == ""
    assert len(run(tree, "log", "-1", "--format=%p").split()) == 2
    assert repository.merge(repository.find("t1")) == "main has everything of task/t1 already"


def test_a_conflict_is_told_with_its_places_and_touches_nothing(repository, tree):
    commit_in(repository.create("t1").path, "a.txt", "one\nTWO\nthree\n")
    head = commit_in(tree, "a.txt", "one\nzwei\nthree\n")
    with pytest.raises(core.ToolError, match=r"conflict in a.txt \(line 2\)"):
        repository.merge(repository.find("t1"))
    assert run(tree, "rev-parse", "HEAD") == head and run(tree, "status", "--porcelain") == ""


def test_a_file_deleted_here_and_changed_there_is_a_conflict_as_a_whole(repository, tree):
    commit_in(repository.create("t1").path, "a.txt", "changed\n")
    run(tree, "rm", "--quiet", "a.txt")
    run(tree, "commit", "--quiet", "--message=Delete")
    assert repository.trial("HEAD", "task/t1")[1] == "conflict in a.txt (as a whole)"


@pytest.mark.parametrize("name", ["a.txt", "untracked.txt", "ignored.log"])
def test_a_merge_never_overwrites_what_is_not_committed(repository, tree, name):
    made = repository.create("t1")
    (made.path / name).write_text("theirs")
    run(made.path, "add", "--force", name)
    run(made.path, "commit", "--quiet", "--message=Theirs")
    (tree / name).write_text("mine")
    with pytest.raises(core.ToolError, match=name):
        repository.merge(repository.find("t1"))
    assert (tree / name).read_text() == "mine" and run(tree, "log", "--format=%s") == "Start"


def test_other_uncommitted_changes_do_not_prevent_a_merge(repository, tree):
    commit_in(repository.create("t1").path)
    (tree / "a.txt").write_text("mine")
    (tree / "b.txt").write_text("staged")
    run(tree, "add", "b.txt")
    repository.merge(repository.find("t1"))
    assert run(tree, "status", "--porcelain").split() == ["M", "a.txt", "M", "b.txt"] and (tree / "new.txt").exists()


def test_a_main_tree_on_no_branch_is_not_merged_into(repository, tree):
    commit_in(repository.create("t1").path)
    run(tree, "checkout", "--quiet", "--detach")
    with pytest.raises(core.ToolError, match="on no branch"):
        repository.merge(repository.find("t1"))


# agents side by side --------------------------------------------------------------------------------------


def test_two_agents_change_the_same_file_each_in_its_own_tree(lead, tree, events):
    report = first_output(lead, in_worktrees("edit a.txt :: two :: TWO ;; bash cat a.txt ;; say First.",
                                       "edit a.txt :: two :: zwei ;; bash cat a.txt ;; say Second.") + " ;; say Both.")
    for words in ("done\nFirst.", "done\nSecond.", "both changed a.txt", "trial merge of the two: conflict in a.txt (line 2)",
                  "changed a.txt; trial merge into the main tree: clean", "git worktree remove", "Nothing is merged"):
        assert words in report
    assert [event["content"] for event in events if event["kind"] == "tool_result" and event["name"] == "bash"
            ] in (["one\nTWO\nthree", "one\nzwei\nthree"], ["one\nzwei\nthree", "one\nTWO\nthree"])
    assert run(tree, "status", "--porcelain") == "" and run(tree, "log", "--format=%s") == "Start"
    assert sorted(run(tree, "log", "--all", "--format=%s").split("\n"))[0] == "Start"
    assert run(tree, "rev-list", "--count", "--all") == "3"


def test_changes_of_one_file_that_fit_together_are_told_to_be_clean(repository, lead, tree):
    commit_in(tree, "a.txt", "".join(f"{n}\n" for n in range(20)))
    commit_in(repository.create("t1").path, "a.txt", "".join(f"{n}\n" for n in range(20)).replace("2\n", "two\n", 1))
    commit_in(repository.create("t2").path, "a.txt", "".join(f"{n}\n" for n in range(20)) + "end\n")
    assert "Overlap: t1 and t2 both changed a.txt; trial merge of the two: clean" in lead.worktree_list()


def meeting(folder, mine, other):
    return f"bash touch {folder}/{mine}; until [ -e {folder}/{other} ]; do sleep 0.01; done ;; say Met."


def test_agents_really_work_at_the_same_time(lead, tmp_path):
    """Each waits for a file that the other one makes."""
    report = first_output(lead, in_worktrees(meeting(tmp_path, "x", "y"), meeting(tmp_path, "y", "x")) + " ;; say Both.")
    assert report.count("done\nMet.") == 2


def test_no_more_agents_at_once_than_allowed(tree, stand_in, events):
    lead = Branching(core.Workspace(tree), parallel=1, permissions=core.Permissions(mode="yes"))
    played(lead, in_worktrees("bash true ;; say a.", "bash true ;; say b.", "bash true ;; say c.") + " ;; say All.")
    order = [event["kind"] for event in events if event["agent"] != "main" and event["kind"] in ("user", "stop")]
    assert order == ["user", "stop"] * 3


def test_an_agent_cannot_leave_its_worktree(lead, tree, events):
    first_output(lead, in_worktrees(f"read {tree}/a.txt ++ write {tree}/x.txt :: x ++ write ../../../y.txt :: y ;; say No.") + " ;; say So.")
    refused = [event for event in events if event["kind"] == "tool_result" and event["agent"] != "main"]
    assert len(refused) == 3 and all("outside the workspace" in event["content"] for event in refused)
    assert run(tree, "status", "--porcelain") == ""


def test_a_worktree_removed_under_its_agent_stops_it_from_working_anywhere_else(lead, tree, events):
    """B014: the next command does not run, and above all not in the main tree."""
    report = first_output(lead, in_worktrees('bash rm -rf "$PWD" ;; bash git add -A ++ write x.txt :: x ;; say Gone.') + " ;; say So.")
    after = [event["content"] for event in events if event["kind"] == "tool_result" and event["agent"] != "main"][1:]
    assert len(after) == 2 and all("worktree was removed" in content for content in after)
    assert "NOT finished" in report and run(tree, "status", "--porcelain") == "" and not (tree / "x.txt").exists()


def test_tasks_of_the_graph_are_given_by_id(lead, tree):
    TaskGraph(tree / ".agent" / "tasks").create("write from_graph.txt :: x ;; say Written.")
    assert "t1: done\nWritten." in first_output(lead, in_worktrees("t1") + " ;; say Done.")
    assert run(tree, "show", "--stat", "--format=", "task/t1").startswith("from_graph.txt")


def test_an_unknown_id_is_refused_before_anything_begins(lead, tree):
    assert "there is no task 't9'" in first_output(lead, in_worktrees("say Hello.", "t9") + " ;; say Told.")
    assert not (tree / ".agent" / "worktrees").exists() or not any((tree / ".agent" / "worktrees").glob("*/"))


def test_a_worktree_without_changes_is_removed_with_its_branch(lead, tree):
    report = first_output(lead, in_worktrees("read a.txt ;; say Read.") + " ;; say Done.")
    assert "done\nRead." in report and "there are no worktrees" in report and run(tree, "branch", "--list", "task*") == ""


def test_a_task_goes_on_in_its_worktree(lead, tree):
    for n in (1, 2):
        TaskGraph(tree / ".agent" / "tasks").create("write x.txt :: x ;; say One." if n == 1 else "other")
        played(lead, in_worktrees("t1") + f" ;; bash echo {n} ;; say Done.")
    assert run(tree, "branch", "--list", "task*").split() == ["+", "task/t1"]


def test_work_is_committed_when_the_model_fails(lead, tree, stand_in):
    """The lead's call, the worker's first, then the endpoint refuses."""
    stand_in.faults[:] = ["ok", "ok", "400"]
    report = first_output(lead, in_worktrees("write x.txt :: x ;; say Never.") + " ;; say Done.")
    assert "NOT finished" in report and "changed x.txt" in report
    assert run(tree, "log", "--all", "--format=%s").count("\n") == 1


def test_a_task_at_which_another_agent_works_is_not_begun_twice(lead, repository):
    with core.locked(repository.create("t1").path):
        worker = Worker(lead, "write x.txt :: x", repository.find("t1"), threading.Event())
        lead.work(worker)
    assert "locked by another" in worker.problem and repository.held(worker.workspace.root) == ""


def test_ctrl_c_stops_all_agents_and_commits_their_work(lead, tree):
    """Both are in a command when it strikes; a third waits for its turn and never begins."""
    lead.slots = threading.Semaphore(2)
    running = threading.Semaphore(0)

    def count(event):
        if event["kind"] == "tool_call" and event["name"] == "bash":
            running.release()

    def strike():
        running.acquire()
        running.acquire()
        os.kill(os.getpid(), signal.SIGINT)

    core.listeners.append(count)
    threading.Thread(target=strike, daemon=True).start()
    tasks = [f"write {n}.txt :: {n} ;; bash sleep {SLEEPER}; true ;; write late.txt :: late ;; say Never." for n in (1, 2, 3)]
    messages = [{"role": "user", "content": in_worktrees(*tasks)}]
    with pytest.raises(KeyboardInterrupt):
        lead.run(messages)
    content = results(messages)[0]["content"]
    assert content.count("NOT finished, it was stopped by the user") == 3 and accepted(lead, messages)
    assert run(tree, "rev-list", "--count", "--all") == "3" and "late.txt" not in run(tree, "log", "--all", "--name-only", "--format=")
    assert SLEEPER not in processes()


def test_a_yes_that_comes_after_the_stop_runs_nothing(tree, stand_in, repository):
    ending = threading.Event()

    def ask(tool, given, rule, agent):
        ending.set()
        return "yes"

    lead = Branching(core.Workspace(tree), permissions=core.Permissions(asker=ask))
    worker = Worker(lead, "write x.txt :: x ;; say Done.", repository.create("t1"), ending)
    lead.work(worker)
    assert "stopped" in worker.problem and not (worker.workspace.root / "x.txt").exists()


def test_always_that_one_agent_was_given_holds_for_all(tree, stand_in, repository):
    asked = []
    lead = Branching(core.Workspace(tree), permissions=core.Permissions(
        asker=lambda tool, given, rule, agent: asked.append(agent) or "always"))
    for name in ("t1", "t2"):
        lead.work(Worker(lead, "write x.txt :: x ;; say Done.", repository.create(name), threading.Event()))
    assert asked == ["main/t1"]


# the tools of the lead ------------------------------------------------------------------------------------


def test_merging_and_removing_are_asked_each_time(tree, stand_in, repository):
    asked = []
    commit_in(repository.create("t1").path)
    lead = Branching(core.Workspace(tree), permissions=core.Permissions(
        asker=lambda tool, given, rule, agent: asked.append(tool.name) or "always"))
    played(lead, "worktree_list ;; worktree_diff t1 ;; worktree_merge t1 ;; worktree_merge t1 ;; worktree_remove t1 ;; say Done.")
    assert asked == ["worktree_merge", "worktree_merge", "worktree_remove"]


def test_without_a_person_nothing_is_merged_or_discarded(tree, stand_in, repository):
    commit = commit_in(repository.create("t1").path)
    lead = Branching(core.Workspace(tree), permissions=core.Permissions(allow=["*"]))
    for script in ("worktree_merge t1 ;; say No.", 'worktree_remove {"task": "t1", "discard": true} ;; say No.'):
        assert "no terminal to ask on" in first_output(lead, script)
    assert run(tree, "rev-parse", "task/t1") == commit and run(tree, "log", "--format=%s") == "Start"


def test_a_diff_shows_committed_and_uncommitted_changes_but_not_those_of_the_main_tree(lead, repository, tree):
    made = repository.create("t1")
    commit_in(made.path)
    (made.path / "b.txt").write_text("bb\n")
    commit_in(tree, "main.txt")
    text = first_output(lead, "worktree_diff t1 ;; say Seen.")
    assert "+new" in text and "+bb" in text and "main.txt" not in text
    assert "no change" in (repository.create("t2") and first_output(lead, "worktree_diff t2 ;; say Seen."))


def test_a_task_is_found_by_description_name_and_branch_and_else_the_others_are_named(repository):
    made = repository.create(safe_name("Fix the login"))
    assert {repository.find(given) for given in ("Fix the login", made.name, made.branch)} == {made}
    with pytest.raises(core.ToolError, match=f"no task 'x' has a worktree; there are: {made.name}"):
        repository.find("x")


def test_the_tools_have_the_agreed_names_and_fields(lead):
    fields = {name: list(tool.input_schema["properties"]) for name, tool in lead.tools.items() if "worktree" in name}
    assert fields == {"run_in_worktrees": ["tasks"], "worktree_list": [], "worktree_diff": ["task"], "worktree_merge": ["task"],
                      "worktree_remove": ["task", "discard"]}
    assert {name for name in fields if lead.tools[name].read_only} == {"worktree_list", "worktree_diff"}
    assert isinstance(lead, Agent)


# nothing is ever lost ---------------------------------------------------------------------------------------


def treasures(tree):
    """Every commit that something points to, and every content in a commit, an index or a file."""
    listed = run(tree, "rev-list", "--objects", "--all", "--indexed-objects")
    ids = "\n".join(line.split(" ")[0] for line in listed.split("\n"))
    kinds = subprocess.run(["git", "cat-file", "--batch-check"], cwd=tree, input=ids, capture_output=True, text=True, check=True)
    found = {line.split()[0] for line in kinds.stdout.splitlines() if line.split()[1] != "tree"}
    for folder, folders, files in os.walk(tree):
        folders[:] = [name for name in folders if name != ".git"]
        for data in [Path(folder, name).read_bytes() for name in files if name != ".git"]:
            found.add(hashlib.sha1(b"blob %d\0" % len(data) + data).hexdigest())
    return found


def disturb(chance, tree, path):
    """Brings a worktree into some state that people and agents leave behind."""
    def fresh():
        return f"{chance.random()}\n"

    def staged_then_changed():
        (path / "a.txt").write_text(fresh())
        run(path, "add", "a.txt")
        (path / "a.txt").write_text(fresh())

    def detached():
        run(path, "checkout", "--quiet", "--detach", fails=True)
        commit_in(path, "d.txt", fresh())

    def in_the_middle_of_a_merge():
        run(path, "branch", "--force", "side")
        commit_in(path, "a.txt", fresh())
        run(path, "checkout", "--quiet", "-B", "side-x", "side")
        commit_in(path, "a.txt", fresh())
        run(path, "checkout", "--quiet", "-")
        run(path, "merge", "side-x", fails=True)

    def nested():
        run(path, "init", "--quiet", "nested")
        commit_in(path / "nested", "n.txt", fresh())

    states = [
        lambda: (path / "a.txt").write_text(fresh()), lambda: (path / "u.txt").write_text(fresh()),
        lambda: (path / "i.log").write_text(fresh()), lambda: commit_in(path, "c.txt", fresh()),
        lambda: run(path, "rm", "--quiet", "--cached", "b.txt"), lambda: run(tree, "worktree", "lock", str(path)),
        lambda: run(tree, "merge", "--quiet", "--no-edit", run(path, "rev-parse", "HEAD"), fails=True),
        staged_then_changed, detached, in_the_middle_of_a_merge, nested]
    for state in chance.sample(states, chance.randint(0, 3)):
        state()
    if chance.random() < 0.25:
        chance.choice([lambda: shutil.rmtree(path), (path / ".git").unlink])()


@pytest.mark.parametrize("seed", range(int(os.environ.get("SEEDS", "6"))))
def test_no_commit_and_no_content_is_lost_in_any_state(seed, lead, repository, tree):
    """B082, B083, B084: random states, then create, run, merge and remove in random order."""
    chance = random.Random(seed)
    for name in ("t1", "t2"):
        TaskGraph(tree / ".agent" / "tasks").create(f"write by-agent-{name}.txt :: {seed} ;; say Done.")
        repository.create(name)
        disturb(chance, tree, repository.home / name)
    if run(tree, "ls-files", "--unmerged"):
        run(tree, "merge", "--abort")
    for name in chance.sample(["a.txt", "b.txt", "c.txt", "u.txt", "i.log", "by-agent-t1.txt"], 2):
        (tree / name).write_text(f"mine {chance.random()}")
    before = treasures(tree)
    steps = [lambda name: first_output(lead, in_worktrees(name) + " ;; say Done."), lead.worktree_merge, lead.worktree_remove,
             repository.create, lambda name: lead.worktree_list()]
    for step in chance.choices(steps, k=4):
        try:
            step(chance.choice(["t1", "t2"]))
        except core.ToolError:
            pass
        assert not before - treasures(tree), step


def test_a_change_that_git_was_told_to_overlook_is_committed(repository):
    """B082: status alone would call the tree clean, and it would be removed."""
    made = repository.create("t1")
    tracked = run(made.path, "ls-files").split()[0]
    run(made.path, "update-index", "--assume-unchanged", tracked)
    (made.path / tracked).write_text("PRECIOUS")
    assert repository.held(made.path)
    repository.save(made, "work")
    assert run(made.path, "show", f"HEAD:{tracked}").strip() == "PRECIOUS"


def test_a_worktree_on_an_orphan_branch_hides_no_other(repository):
    repository.create("t1")
    run(repository.create("t2").path, "checkout", "-q", "--orphan", "alone")
    assert "t1" in [worktree.name for worktree in repository.worktrees()]

