"""s12 · worktrees: one git worktree and branch for each task, so that agents can work side by side

Pain    Two agents in one folder stand in each other's way: a test that would be green alone is red
        because of what the other one wrote. `python s12_worktrees.py --demo` begins with it.
Idea    git can check out one repository into many folders at once, each on a branch of its own. A
        task gets such a worktree, and an agent that cannot leave it. What the agents did meets only
        at the end, where git can say exactly whether it fits together, and a person decides.

            main tree (yours) ◄──────────────── worktree_merge: asked, never with a conflict
              │                                                   ▲
              ├─► .agent/worktrees/t1  on task/t1 ─ agent ─ commit┤ both changed a file?
              └─► .agent/worktrees/t2  on task/t2 ─ agent ─ commit┘ trial merge: clean, or where not

        Nothing that exists is deleted to make room: a branch name that is taken gets a suffix, a
        folder deleted by hand comes back from git's index, uncommitted work is committed or its
        worktree stays, a branch with commits that are nowhere else stays. Only `discard` deletes.
Change  No step of Agent for the lead: five tools. A Worker checks in run_tool whether it was
        stopped, because Ctrl-C strikes only the main thread.
Cost    A full checkout for each task, and as many conversations at once as --parallel allows. A
        worktree starts from the last commit: without your uncommitted changes, ignored files,
        installed packages, submodules. bash can leave any folder: that is why it asks. A git that
        works for long (a slow filter) is waited for, also at the end of the program.
Try     In a git repository with a commit:
        run_in_worktrees {"tasks": ["write a.txt :: one", "write a.txt :: two"]} ;; worktree_list
Look for the line that begins with Overlap; and your own tree, in which nothing has changed. The
        branches are ordinary ones: git log --all --graph
Builds on s01_agent_loop.py, s07_task_graph.py, s04_subagent.py (for the demonstration); git 2.38 or newer
"""

import collections
import hashlib
import itertools
import json
import os
import re
import shlex
import subprocess
import threading
import time
from concurrent.futures import ThreadPoolExecutor
from dataclasses import replace
from pathlib import Path

import core
from console import main
from s01_agent_loop import Agent
from s04_subagent import Spawning
from s07_task_graph import TaskGraph, resolve

PARALLEL = 4  # agents at once: more would wait for the API's rate limit, and each may ask you something
# a name that is good for a folder and a branch
PLAIN = r"(?!(con|prn|aux|nul|(com|lpt)\d|head|create)$)[a-z0-9][a-z0-9_-]{0,39}"
# ignored files that nobody misses, in git status
CACHES = r"!! (.*/)?(__pycache__|\.(pytest|ruff|mypy)_cache)/"
# tries while another git process holds index.lock for a moment; seconds: between two of them; for a git
# command (a large checkout takes its time); for agents to end after Ctrl-C (one that waits for the API ends
# later, without acting)
LOCK_TRIES, LOCK_PAUSE, GIT_SECONDS, STOP_SECONDS = 50, 0.1, 300, 1.5
# no hooks, no signatures, nothing in the background: git must neither wait for a person nor outlive us
SETTINGS = ("-c core.quotepath=off -c core.hooksPath=/dev/null -c core.fsmonitor=false -c gc.auto=0 "
            "-c commit.gpgSign=0").split()
NEUTRAL = {"LC_ALL": "C", "GIT_TERMINAL_PROMPT": "0", "GIT_OPTIONAL_LOCKS": "0", "GIT_EDITOR": "true"}
# of the environment: GIT_DIR and others name another repository
DROPPED = r"ANTHROPIC_|GIT_(?!AUTHOR_|COMMITTER_|CONFIG_|SSH|EXEC)"
NOBODY = {"user.name": "agent", "user.email": "agent@localhost"}  # the author where none is configured
SYSTEM = """You are a coding agent with one task. Your workspace is the folder {root}, a git worktree on a branch
of its own; other agents have others. Act through your tools, test what you did, do not switch branches, merge or
push: your changes are committed for you. Say at last what you changed, how the tests went, what is not done."""
GONE = "not run: this worktree was removed. Work nowhere else; end, and say so"
STOPPED = "it was stopped by the user"

# the decisions: functions of names and of what git printed -------------------------------------


# the worktree of a task; the branch it is on is empty when its HEAD is detached; tip: the commit it is at
Worktree = collections.namedtuple("Worktree", "name path branch tip")


def title(task: str) -> str:
    """The first words of a task, on one line."""
    return next(iter(task.strip("# \n").splitlines()), "")[:72]


def safe_name(task: str) -> str:
    """A name for a folder and a branch: the task itself if it is one, else words of it and a digest."""
    # 32 characters of at most 4 bytes still fit a file name
    slug = re.sub(r"[\W_]+", "-", title(task).lower()).strip("-")[:32].strip("-") or "task"
    # the digest parts tasks that begin alike, and names that differ only in case
    digest = hashlib.sha256(task.encode("utf-8", "surrogatepass")).hexdigest()[:6]
    return task if re.fullmatch(PLAIN, task) else f"{slug}-{digest}"


def is_own(name: str, branch: str) -> bool:
    """Whether a branch has a name that free_branch gives to this task."""
    return bool(re.fullmatch(rf"task[/-]{re.escape(name)}(-\d+)?", branch))


def free_branch(name: str, branches: list[str]) -> str:
    """task/NAME, or the first variant of it that can exist beside the branches there are."""
    # exercise 12.1: the variants are task/NAME-2, task/NAME-3 and so on; if there is a branch "task",
    # all begin with task-NAME. A branch is a file in git: where there is a/b, neither a nor a/b/c can be,
    # and where the file system takes a and A as one, nor can A/b.
    # hint: "task/t1/more" stands in the way of "task/t1"; "task/t10" does not
    # hint: compare with .casefold(): on many file systems TASK/T1 and task/t1 are one file
    taken = [f"{branch}/".casefold() for branch in branches]
    # many file systems take a and A as one; and git keeps branches as files: beside a branch "task"
    # there is no folder for task/NAME
    stem = f"task-{name}" if "task/" in taken else f"task/{name}"
    variants = itertools.chain([stem], (f"{stem}-{number}" for number in itertools.count(2)))
    return next(new for new in variants if not any(old.startswith(f"{new}/".casefold()) for old in taken))


def parse_worktrees(output: str, home: Path) -> list[Worktree]:
    """The worktrees in a folder, from `git worktree list --porcelain -z`."""
    items = [dict(line.partition(" ")[::2] for line in one.split("\0")) for one in output.split("\0\0") if one]
    return [Worktree(path.name, path, item.get("branch", "").removeprefix("refs/heads/"), item["HEAD"])
            for item in items if (path := Path(item["worktree"])).parent == home and item["HEAD"].strip("0")]


def uncommitted(status: str) -> str:
    """How much `git status --porcelain -z --no-renames` lists, as `1 changed, 0 untracked, 2 ignored files`.

    Empty when it lists nothing.
    """
    codes = [line[:2] for line in status.split("\0") if line and not re.match(CACHES, line)]
    new, ignored = codes.count("??"), codes.count("!!")
    return f"{len(codes) - new - ignored} changed, {new} untracked, {ignored} ignored files" if codes else ""


def place(file: str, text: str) -> str:
    """Where a file conflicts, from its text with the marks of a merge: `a.py (line 3, 9)`."""
    lines = [str(number) for number, line in enumerate(text.split("\n"), 1) if line.startswith("<<<<<<< ")]
    return f"{file} (line {', '.join(lines)})" if lines else f"{file} (as a whole)"


# git -------------------------------------------------------------------------------------------


def git(tree: Path, *arguments: str, codes: tuple | None = (0,), look_up: bool = False) -> str:
    """The output of a git command in a working tree; ToolError for an exit code not in `codes` (None: any).

    It runs in a thread and a session of its own, so that Ctrl-C never leaves it half done, and
    waits for another git process's lock, but not for ever.
    """
    # told where to look, git looks no further up: a worktree that lost its .git lies inside the main tree
    where = [] if look_up else [f"--git-dir={tree / '.git'}", f"--work-tree={tree}"]
    environment = {key: value for key, value in os.environ.items() if not re.match(DROPPED, key)} | NEUTRAL
    for _ in range(LOCK_TRIES):
        with ThreadPoolExecutor(1) as shield:
            done = shield.submit(
                subprocess.run, ["git", *SETTINGS, *where, *arguments], cwd=tree, env=environment,
                stdin=subprocess.DEVNULL, capture_output=True, start_new_session=True, timeout=GIT_SECONDS).result()
        if not (done.returncode and re.search(rb"\block\b.*File exists", done.stderr)):
            break
        time.sleep(LOCK_PAUSE)
    if codes and done.returncode not in codes:
        what = "worktrees need a git repository with a commit to start from" if look_up else "git failed"
        raise core.ToolError(f"{what}: {(done.stderr or done.stdout).decode('utf-8', 'replace').strip()[-1000:]}")
    return os.fsdecode(done.stdout)


def commit(tree: Path, *arguments: str) -> str:
    """A git command that makes a commit, with an author even where none is configured."""
    unset = [f"{key}={who}" for key, who in NOBODY.items() if not git(tree, "config", key, codes=None).strip()]
    return git(tree, *(word for setting in unset for word in ("-c", setting)), *arguments)


class Repository:
    """The git repository that a folder lies in, and the worktrees of tasks in .agent/worktrees of that folder."""

    def __init__(self, folder: Path):
        self.tree = Path(git(folder, "rev-parse", "--show-toplevel", "HEAD^0", look_up=True).rsplit("\n", 2)[0])
        self.home = (folder / ".agent" / "worktrees").resolve()

    def worktrees(self) -> list[Worktree]:
        """Those of tasks. A folder deleted by hand comes back as git's index knows it, with what was staged."""
        found = parse_worktrees(git(self.tree, "worktree", "list", "--porcelain", "-z"), self.home)
        for worktree in [worktree for worktree in found if not (worktree.path / ".git").exists()]:
            worktree.path.mkdir(exist_ok=True, parents=True)
            git(self.tree, "worktree", "repair")
            # 1: some files are there already
            git(worktree.path, "checkout-index", "--all", "--quiet", codes=(0, 1))
        return found

    def find(self, task: str) -> Worktree:
        """The worktree of a task, given by id, description, name or branch."""
        found = {name: tree for tree in self.worktrees() for name in (tree.name, tree.branch) if name}
        if not (worktree := found.get(task) or found.get(safe_name(task))):
            raise core.ToolError(f"no task {task!r} has a worktree; there are: {', '.join(found) or 'none'}")
        return worktree

    def create(self, name: str) -> Worktree:
        """The worktree of a task: the one there is, or a new one on a branch of its own that begins at HEAD."""
        if not (ignore := self.home.parent / ".gitignore").exists():
            core.atomic_write(ignore, b"*\n")  # out of the user's git status
        with core.locked(self.home / "create"):
            if name not in [worktree.name for worktree in self.worktrees()]:
                names = git(self.tree, "for-each-ref", "--format=%(refname:lstrip=2)", "refs/heads").splitlines()
                git(self.tree, "worktree", "add", "--no-track", "-b", free_branch(name, names), str(self.home / name))
                if modules := git(self.home / name, "config", "-f", ".gitmodules", "--get-regexp", "path$", codes=None):
                    core.emit("notice", text=f"{name}: the submodules are not populated: {modules.split()[1::2]}")
            return self.find(name)

    def held(self, tree: Path) -> str:
        """What a tree holds that is in no commit, in words."""
        git(tree, "update-index", "--really-refresh", codes=(0, 1))  # also what was marked as never changing
        return uncommitted(git(tree, "status", "--porcelain", "-z", "--no-renames", "-uall", "--ignored"))

    def save(self, worktree: Worktree, message: str) -> None:
        """Commits all of a worktree on its branch. If that cannot be: ToolError, and all stays as it is."""
        # exercise 12.2: commit what is staged, then all the rest, each only if there is something. Refuse any
        # branch but the task's own: "not committed: PATH is on feature instead of its own" (or: is on no
        # branch).
        # hint: `git branch --show-current` says where it is now; is_own judges it
        # hint: an agent may stage one text and write another; `git add --all` first would lose the staged one
        if not is_own(worktree.name, here := git(worktree.path, "branch", "--show-current").strip()):
            raise core.ToolError(f"not committed: {worktree.path} is on {here or 'no branch'} instead of its own")
        for step in (("update-index", "--really-refresh"), ("add", "--all")):  # what is staged goes first: it
            git(worktree.path, *step, codes=(0, 1))  # may differ from what lies there now
            if git(worktree.path, "diff", "--cached", "--name-only"):
                commit(worktree.path, "commit", "-m", message)

    def own_commits(self, worktree: Worktree) -> int:
        """How many of its commits are on no other branch, tag or remote branch."""
        but = [f"--exclude={worktree.branch or ' '}", "--branches", "--tags", "--remotes"]
        return int(git(worktree.path, "rev-list", "--count", "HEAD", "--not", *but))

    def changed(self, worktree: Worktree) -> list[str]:
        """The files that its commits changed since it left the main tree's HEAD."""
        return git(self.tree, "diff", "--name-only", "-z", "--no-renames", f"HEAD...{worktree.tip}").split("\0")[:-1]

    def trial(self, ours: str, theirs: str) -> tuple[str, str]:
        """A merge tried without touching a file: the tree it gives, and what is in conflict, empty when clean."""
        options = ("--write-tree", "-z", "--name-only", "--no-messages")
        tree, *files = git(self.tree, "merge-tree", *options, ours, theirs, codes=(0, 1)).rstrip("\0").split("\0")
        texts = [git(self.tree, "cat-file", "-p", f"{tree}:{file}", codes=None) for file in files]
        return tree, f"conflict in {', '.join(map(place, files, texts))}" * bool(files)

    def merge(self, worktree: Worktree) -> str:
        """Merges the branch of a task into the main tree; ToolError, with nothing touched, if it is not clean."""
        ours, branch = git(self.tree, "rev-parse", "HEAD").strip(), git(self.tree, "branch", "--show-current").strip()
        tree, conflict = self.trial(ours, worktree.tip)
        if conflict or not branch:
            why = conflict or "the main tree is on no branch"
            raise core.ToolError(f"{worktree.branch} is not merged: {why}. Ask the user what to do")
        if not git(self.tree, "rev-list", "-1", f"{ours}..{worktree.tip}"):
            return f"{branch} has everything of {worktree.branch} already"
        new = commit(self.tree, "commit-tree", tree, "-p", ours, "-p", worktree.tip, "-m", f"Merge {worktree.branch}")
        # forward to what was tried: all or nothing, and never over a file that is not committed
        git(self.tree, "merge", "--ff-only", "--no-overwrite-ignore", new.strip())
        return f"merged {worktree.branch} into {branch}"

    def remove(self, worktree: Worktree, discard: bool = False) -> str:
        """Removes a worktree, and its branch if its commits are elsewhere too. ToolError if work would be lost."""
        name, path, branch, tip = worktree
        with core.locked(path, 0):  # not while an agent is at work in it
            commits, held = self.own_commits(worktree), self.held(path)
            if not discard and (lost := held or "commits on no branch" * bool(commits and not branch)):
                raise core.ToolError(f"{path} stays with {lost}. Only discard = true deletes them")
            git(self.tree, "worktree", "remove", *["--force"] * discard, str(path))
        if is_own(name, branch) and (discard or not commits):
            git(self.tree, "update-ref", "-d", f"refs/heads/{branch}", tip)
            return f"removed {path} and its branch {branch}, which was at {tip}"
        stays = f"; {branch} stays, for commits that are nowhere else: {commits} (git branch -D deletes them)"
        return f"removed {path}, which was at {tip}{stays * bool(branch)}"


# the agents ------------------------------------------------------------------------------------


class Worker(Agent):
    """An agent with one task in a worktree, which it cannot leave. Once `ending` is set, its next step ends it."""

    system = SYSTEM

    def __init__(self, lead: Agent, task: str, worktree: Worktree, ending: threading.Event):
        def ask(*question) -> str:
            return (lead.permissions.asker(*question), "no")[ending.is_set()]  # no, if stopped while it was asked

        permissions = replace(lead.permissions, asker=lead.permissions.asker and ask)
        workspace = core.Workspace(worktree.path)
        super().__init__(workspace, permissions, core.extended_tools(workspace), lead.model, lead.max_turns,
                         f"{lead.name}/{worktree.name}")
        self.task, self.worktree, self.ending, self.ended = task, worktree, ending, threading.Event()
        self.said, self.problem = "", STOPPED

    def run_tool(self, call: dict) -> dict:
        """One call, unless its folder is gone. Once the agent was stopped, its run ends here."""
        gone = not (self.workspace.root / ".git").exists()
        result = core.tool_result(call, GONE, True) if gone or self.ending.is_set() else super().run_tool(call)
        if self.ending.is_set():
            raise core.Interrupted(STOPPED)
        return result


class Branching(Agent):
    """An agent that has tasks done side by side, each by a Worker in a worktree."""

    def __init__(self, workspace: core.Workspace, parallel: int = PARALLEL, **options):
        super().__init__(workspace, **{"tools": core.extended_tools(workspace), **options})
        reading, changing = (self.worktree_list, self.worktree_diff), (self.worktree_merge, self.worktree_remove)
        self.tools = self.tools | core.registry(*map(core.Tool.of, (self.run_in_worktrees, *changing)),
                                                *(core.Tool.of(run, read_only=True) for run in reading))
        self.permissions.ask += [run.__name__ for run in changing]  # each time: an old "always" is no review
        self.slots = threading.Semaphore(max(1, parallel))

    @property
    def repository(self) -> Repository:
        return Repository(self.workspace.root)

    def run_in_worktrees(self, tasks: list[str]) -> str:
        """Have several tasks done side by side, each by an agent of its own in a git worktree of its own.

        Use it for tasks that do not need each other's results. Each is a description that says
        everything (the agents know nothing of this conversation: files, facts, how to test), or
        the id of a task in the task graph. They start from the last commit, without uncommitted
        changes. What an agent did is committed on its branch; nothing is merged. A task that has
        a worktree already goes on in it.
        """
        graph, ending = TaskGraph(self.workspace.root / ".agent" / "tasks").load(), threading.Event()
        texts = {safe_name(task): graph[resolve(task, graph)]["description"] if re.fullmatch(r"t\d+", task) else task
                 for task in tasks if task.strip()}
        workers = [Worker(self, text, self.repository.create(name), ending) for name, text in texts.items()]
        try:
            for worker in workers:
                threading.Thread(target=self.work, args=[worker], daemon=True).start()
            while not all(worker.ended.wait(0.1) for worker in workers):
                pass  # a wait without a limit could miss a Ctrl-C that strikes just before it
        except KeyboardInterrupt as stop:
            ending.set()
            limit = time.monotonic() + STOP_SECONDS
            while time.monotonic() < limit and not all(worker.ended.wait(0.02) for worker in workers):
                for shell in [shell for worker in workers for shell in list(worker.workspace.shells)]:
                    shell.kill()
            raise core.Interrupted(self.report(workers)) from stop
        return self.report(workers)

    def work(self, worker: Worker) -> None:
        """What a worker's thread does. However it ends, its work is committed; without any its worktree goes."""
        try:
            with self.slots, core.locked(worker.workspace.root, 0):  # alone in its worktree
                if worker.ending.is_set():
                    return
                core.emit("user", agent=worker.name, text=worker.task)
                try:
                    worker.said = worker.run([{"role": "user", "content": worker.task}])
                    worker.problem = f"it ended with {worker.stop}" * (worker.stop != "end_turn")
                finally:
                    self.repository.save(worker.worktree, title(worker.task))
            if not (self.repository.own_commits(worker.worktree) or self.repository.held(worker.workspace.root)):
                self.repository.remove(worker.worktree)
        except (Exception, core.Interrupted) as error:  # the report says it
            worker.problem = str(error)
        finally:
            worker.ended.set()

    def report(self, workers: list[Worker]) -> str:
        """What came of each task, then what there is now, which the user is shown as well."""
        core.emit("notice", agent=self.name, text=(listed := self.worktree_list()))
        lines = [f"{worker.worktree.name}: {f'NOT finished, {worker.problem}' if worker.problem else 'done'}\n"
                 + core.clip(worker.said, 2000) for worker in workers]
        return "\n".join([*lines, listed, "Nothing is merged: the user should review it first, see worktree_diff."])

    def worktree_list(self) -> str:
        """List the worktrees of tasks: what they changed, whether they merge, what is only there, the command
        that removes each once it is merged, and which tasks changed the same files."""
        lines, found, repository = [], self.repository.worktrees(), self.repository
        changed = {tree: repository.changed(tree) for tree in found}
        for tree in found:
            merges, files = repository.trial("HEAD", tree.tip)[1] or "clean", ", ".join(changed[tree]) or "nothing"
            branch = f" && git branch -d {tree.branch}" * bool(tree.branch)
            left, held = repository.own_commits(tree), repository.held(tree.path) or "nothing"
            lines += [f"{tree.name}: changed {files}; trial merge into the main tree: {merges}; "
                      f"commits that are nowhere else: {left}; not committed: {held}",
                      f"  to remove: git worktree remove {shlex.quote(str(tree.path))}{branch}"]
        for one, two in itertools.combinations(found, 2):
            if both := ", ".join(sorted({*changed[one]} & {*changed[two]})):
                tried = repository.trial(one.tip, two.tip)[1] or "clean"
                lines.append(f"Overlap: {one.name} and {two.name} both changed {both}; trial merge of the two: {tried}")
        return "\n".join(lines) or "there are no worktrees of tasks"

    def worktree_diff(self, task: str) -> str:
        """Show what a task changed since its branch left the main one, uncommitted changes included."""
        path, base = self.repository.find(task).path, git(self.repository.tree, "rev-parse", "HEAD").strip()
        return git(path, "diff", "--merge-base", "--no-ext-diff", "--no-color", "--stat", "-p", base) or "no change"

    def worktree_merge(self, task: str) -> str:
        """Merge the branch of a task into the branch of the main tree, after the user has reviewed it.

        The user is asked each time. It is tried first: with conflicts nothing is merged.
        """
        return self.repository.merge(self.repository.find(task))

    def worktree_remove(self, task: str, discard: bool = False) -> str:
        """Remove the worktree of a task, and its branch once it is merged. Refused where work would be lost.

        discard = true deletes uncommitted files and unmerged commits: only when the user has said so.
        """
        return self.repository.remove(self.repository.find(task), discard)


def in_repository(workspace: core.Workspace, **options) -> Branching:
    """The agent in a folder that is made a git repository; it may do everything but what is always asked."""
    git(workspace.root, "init", "--quiet", "--initial-branch=main", look_up=True)
    git(workspace.root, "add", "--all")
    commit(workspace.root, "commit", "--message=Prices")
    permissions = core.Permissions(allow=["*"], asker=options["permissions"].asker)
    return Branching(workspace, **options | {"permissions": permissions})


FILES = {"price.py": "def price(net):\n    return net\n"}
TASKS = [f"# {words}\nedit price.py :: return net :: return net {formula}\n"
         f"bash python3 -B -c \"import price; print('green' if price.price(100) == {gross} else 'red')\"\nsay Done."
         for words, formula, gross in (("Double the price", "* 2", 200), ("Take five off", "- 5", 95))]
ONE, TWO = map(safe_name, TASKS)
DEMO = [
    {"note": "Two agents in one folder: the second is right, yet its test is red because of what the first did.",
     "files": FILES, "make": Spawning, "prompt": "Let two subagents double the price and take five off, and test it.",
     "script": " ++ ".join(f"spawn_subagent {json.dumps({'prompt': task})}" for task in TASKS) + " ;; say Red."},
    {"note": "Both at once, each in a worktree: green. git finds that they overlap; a person is asked to merge.",
     "files": FILES, "make": in_repository, "prompt": "Do both in worktrees. What overlaps? Merge the first.",
     "script": f"run_in_worktrees {json.dumps({'tasks': TASKS})} ;; worktree_merge {ONE} ;; say Please review it."},
    {"note": "As if you had agreed (--yes): one merges, the other conflicts now and is not touched. No work is lost.",
     "make": Branching, "prompt": "Merge both, then remove both worktrees.",
     "script": " ;; ".join([*(f"worktree_{do} {it}" for do in ("merge", "remove") for it in (ONE, TWO)), "say Done."]),
     "after": lambda agent, _: git(agent.workspace.root, "log", "--all", "--graph", "--format=%s%d").rstrip()},
]

if __name__ == "__main__":
    main(Branching, session="s12", title="worktrees", demo=DEMO,
         options={"--parallel": {"type": int, "default": PARALLEL, "help": f"agents at once; default: {PARALLEL}"}})
