"""s07 · task graph: tasks that know what they wait for, in files that outlive the run

Pain    A plan in the conversation dies with it, and a flat list cannot say that the switch must not
        be done before the backup is made. `python s07_task_graph.py --demo` begins with an agent
        that takes over from a stopped run: it finds files, but not what is done.
Idea    Write each task to a file of its own, with the ids of the tasks it depends on. What may be
        begun is then no opinion but a computation: pending, and all it depends on is done.

            schema ──► migration ──► switch ──► all       ready    pending, waits for nothing
              │        backup ───────┘          ▲         blocked  pending, waits for something
              └──────► code ────────────────────┘         blocks   the same arrows, read backwards

        An arrow is stored at one end only (`depends_on`); the other (`blocks`) is derived, so the
        two cannot disagree, and every change is a change of one file. One file can be replaced in
        one step (write beside it, rename): whenever a process is killed, each task is as it was
        or as it was to be. A lock makes "read, decide, write" one step among all processes.
Change  No step of Agent. Five tools, task_create, task_update, task_get, task_list and task_next,
        and a line in the system prompt about what an earlier run left open.
Cost    Five definitions in each request, and two calls for each task. A change reads only what
        others changed since: a journal names it. The graph says what may be begun; it starts
        nothing, and whether a task is really done the model must find out (s11 has workers).
Try     task_create build :: [] :: high :: build ;; task_create ship :: ["build"] :: low :: ship
        task_update ship :: done ;; task_update build :: done ;; task_next
        Then /tasks, leave with /quit, start again: task_next. The files are in .agent/tasks.
Look for the refusal that says what a task waits for, and the line "unblocked" when that is done.
Builds on s01_agent_loop.py
"""

import json
import re
import time
from collections.abc import Callable
from pathlib import Path
from typing import Literal

import core
from console import main, one_line
from s01_agent_loop import Agent

STATUSES = ("pending", "in_progress", "done", "failed")
PRIORITIES = ("high", "medium", "low")
TEXT = {"type": "string"}
# the fields of a task file with their JSON schemas; it may hold more, for sessions that need it
FIELDS = dict.fromkeys("id key description owner result created updated".split(), TEXT) | {
    "status": {"enum": STATUSES}, "priority": {"enum": PRIORITIES}, "depends_on": {"type": "array", "items": TEXT}}
MARKS = {"pending": "○", "blocked": "◌", "in_progress": "◐", "done": "●", "failed": "✗"}
STYLES = {"pending": "", "blocked": "dim", "in_progress": "yellow", "done": "green", "failed": "red"}
# tasks named in one message, more would bury what it says; seconds for which the journal alone is believed,
# since someone may edit a file by hand
NAMED, TRUSTED = 20, 5.0
SYSTEM = ("\nWork of several steps goes into the task graph, each task with what it depends on. Take what task_next "
          "gives, set it to in_progress, do it, and set it to done or failed, with what others must know as result.")

# the decisions: functions of plain tasks by id -----------------------------------------------


def record(needed: dict, more: dict | None = None) -> dict:
    """The schema of an object, from those of the fields that must be there and of others that may be."""
    return {"type": "object", "required": [*needed], "properties": {**needed, **(more or {})}}


def parse_task(data: bytes, task_id: str, more: dict | None = None) -> dict:
    """The task that a file holds; ValueError says why it holds none. `more`: the schemas of further fields."""
    task = json.loads(data)
    if wrong := core.problems(task, record(FIELDS | {"id": {"enum": [task_id]}}, more), "task"):
        raise ValueError("; ".join(wrong))
    return task


def name_tasks(ids: list[str], tasks: dict[str, dict]) -> str:
    """Ids with their keys, as `t1 (schema), t2`; of many only the first."""
    names = [f"{i} ({tasks[i]['key']})" if i in tasks and tasks[i]["key"] else i for i in ids]
    return ", ".join(names[:NAMED] + [f"{len(names) - NAMED} more"] * (len(names) > NAMED))


def resolve(name: str, tasks: dict[str, dict]) -> str:
    """The id that an id or a key stands for; else ToolError, with the ids that begin so."""
    found = [name] if name in tasks else [i for i in tasks if name and tasks[i]["key"] == name]
    if len(found) != 1:  # never the one t10 for a t1 whose file is gone
        found = found or [i for i in tasks if name and i.startswith(name)]
        maybe = f"it may be {name_tasks(found, tasks)}" if found else f"the tasks are: {name_tasks([*tasks], tasks)}"
        raise core.ToolError(f"there is no task {name!r}; {maybe}")
    return found[0]


def find_cycle(task_id: str, tasks: dict[str, dict]) -> list[str]:
    """The cycle that a task is part of, as [t1, t3, t2, t1], each depending on the next; else empty."""
    # exercise 7.2: find the way from a task along depends_on back to itself. An id may have no task, a cycle
    # elsewhere is no answer (and must not catch you), and a chain may have ten thousand tasks.
    # hint: no recursion: a list of ids still to be looked at, and a dict from each id found to the one it
    # was found from
    # hint: when the dict knows task_id itself, walk it backwards from there and turn the path round
    led_by, queue = {}, [task_id]
    for here in queue:  # it grows by all that the task depends on, directly or not, nearest first
        new = [i for i in (tasks[here]["depends_on"] if here in tasks else []) if i not in led_by]
        led_by.update(dict.fromkeys(new, here))
        queue += new
    path = [led_by[task_id], task_id] if task_id in led_by else []
    while path and path[0] != task_id:
        path.insert(0, led_by[path[0]])
    return path


def waits_for(task: dict, tasks: dict[str, dict]) -> list[str]:
    """Its dependencies that are not done. One whose file is gone counts: nobody knows that it was done."""
    return [i for i in task["depends_on"] if i not in tasks or tasks[i]["status"] != "done"]


def state(task: dict, tasks: dict[str, dict]) -> str:
    """Its status, or `blocked` for a pending task that waits for others."""
    return "blocked" if task["status"] == "pending" and waits_for(task, tasks) else task["status"]


def why_blocked(task: dict, tasks: dict[str, dict]) -> str:
    """What a task waits for, and how that is: `waits for t2 (backup): failed`; empty when for nothing."""
    waiting = {i: state(tasks[i], tasks) if i in tasks else "its file is missing" for i in waits_for(task, tasks)}
    return "waits for " + ", ".join(f"{name_tasks([i], tasks)}: {waiting[i]}" for i in waiting) if waiting else ""


def ready(tasks: dict[str, dict]) -> list[dict]:
    """The tasks that may be begun now, the next one first: by priority, then by age."""
    # exercise 7.1: compute what may be begun: pending, and waiting for nothing.
    # hint: waits_for(task, tasks) is empty when all that a task depends on is done
    # hint: `tasks` holds the oldest first, and a stable sort keeps that; as text "t10" comes before "t9"
    found = [task for task in tasks.values() if task["status"] == "pending" and not waits_for(task, tasks)]
    return sorted(found, key=lambda task: PRIORITIES.index(task["priority"]))  # equal ones keep their order


def blocks(task_id: str, tasks: dict[str, dict]) -> list[str]:
    """The tasks that depend on a task: `depends_on` read backwards."""
    return [i for i, task in tasks.items() if task_id in task["depends_on"]]


def consequences(task: dict, tasks: dict[str, dict]) -> str:
    """What the end of a task means for those that depend on it, as a line; empty when nothing."""
    what = {"done": "unblocked", "failed": "still blocked by it"}.get(task["status"])
    named = [i for i in blocks(task["id"], tasks) if what != "unblocked" or state(tasks[i], tasks) == "pending"]
    return f"\n{what}: {name_tasks(named, tasks)}" if what and named else ""


def edited(old: dict, tasks: dict[str, dict], add: list[str] | None, remove: list[str] | None, **fields) -> dict:
    """A task after a change (None: none). ToolError if that closes a cycle, or begins or ends what is blocked."""
    gone = [name if name in old["depends_on"] else resolve(name, tasks) for name in remove or []]
    kept = [i for i in old["depends_on"] if i not in gone] + [resolve(name, tasks) for name in add or []]
    given = {name: value for name, value in fields.items() if value is not None}
    new = {**old, **given, "depends_on": list(dict.fromkeys(kept))}
    if cycle := find_cycle(new["id"], {**tasks, new["id"]: new}):
        raise core.ToolError(f"that would close a cycle: {' -> '.join(cycle)} (each depends on the next)")
    if new["status"] in {"in_progress", "done"} - {old["status"]} and (why := why_blocked(new, tasks)):
        raise core.ToolError(f"{new['id']} cannot be {new['status']}, it {why}. Do that, or remove_depends_on")
    return new


def describe(task: dict, tasks: dict[str, dict]) -> str:
    """A task in one line: state, priority, what it waits for or comes after, the beginning of its result."""
    after = f"after {', '.join(task['depends_on'])}" if task["depends_on"] else ""
    text = f"{name_tasks([task['id']], tasks)} [{state(task, tasks)}, {task['priority']}] {task['description']}"
    line = " | ".join(filter(None, [text, why_blocked(task, tasks) or after, task["result"][:200]]))
    return one_line(line, core.OUTPUT_LIMIT)


# the files -------------------------------------------------------------------------------------


class TaskGraph:
    """Tasks in a folder, one file each, for any number of threads and processes.

    All changes go through `change`. The journal lists the ids of changed tasks: a process reads
    only those that are new to it, and no id is given twice, even if its file is gone. Tasks that
    were handed out are not to be changed in place.
    """

    more: dict[str, dict] = {}  # schemas of the fields that a session adds

    def __init__(self, folder: Path):
        self.folder, self.journal = Path(folder), Path(folder) / "journal"
        self._tasks, self._last_id, self._read_to, self._scanned = {}, 0, 0, float("-inf")

    def load(self) -> dict[str, dict]:
        """All tasks by id, oldest first, as they are in the files now."""
        if not self.folder.is_dir():  # looking alone makes no folder
            return {}
        with core.locked(self.folder):
            self._refresh(whole=True)
            return self._tasks

    def change(self, decide: Callable[[dict[str, dict]], dict | None]) -> tuple[dict | None, dict[str, dict]]:
        """One locked read-modify-write: `decide(tasks)` returns the task to store, or None.

        Returns that task, and all tasks as they are then. What decide raises changes nothing.
        """
        with core.locked(self.folder):
            self.folder.mkdir(exist_ok=True)
            self._refresh()
            if task := decide(self._tasks):
                now = time.strftime("%Y-%m-%dT%H:%M:%SZ", time.gmtime())
                task = {**task, "created": task.get("created", now), "updated": now}
                with open(self.journal, "ab") as file:  # first: killed after it, others read a file in vain
                    file.write(f"\n{task['id']}\n".encode())
                data = json.dumps(task, ensure_ascii=False, indent=1).encode("utf-8", "surrogatepass")
                core.atomic_write(self.folder / f"{task['id']}.json", data)
                self._tasks = {**self._tasks, task["id"]: task}
            return task, self._tasks

    def create(self, description: str, depends_on: list | None = None, key: str = "", **more) -> tuple[dict, dict]:
        """Adds a task; `depends_on`: ids and keys; `more`: priority and other fields. Returns as `change`."""
        def decide(tasks: dict[str, dict]) -> dict:
            if key and (re.fullmatch("t?[0-9]*", key) or key in [task["key"] for task in tasks.values()]):
                raise core.ToolError(f"the key {key!r} is taken, or looks like an id; choose another word")
            new = {"id": f"t{self._last_id + 1}", "key": key, "description": description, "status": "pending",
                   "priority": "medium", "depends_on": [], "owner": "", "result": "", **more}
            return edited(new, {**tasks, new["id"]: new}, depends_on, None)
        return self.change(decide)

    def update(self, name: str, add: list | None = None, remove: list | None = None, **fields) -> tuple[dict, dict]:
        """Changes a task; `add`, `remove`: ids or keys it depends on; `fields`: others. Returns as `change`."""
        return self.change(lambda tasks: edited(tasks[resolve(name, tasks)], tasks, add, remove, **fields))

    def _refresh(self, whole: bool = False) -> None:
        """Reads what the journal names since the last look, or everything; only under the lock."""
        with open(self.journal, "a+b") as file:
            file.seek(self._read_to)
            changed = file.read().decode("ascii", "replace").split()
            end = file.tell()
        if scan := whole or time.monotonic() - self._scanned > TRUSTED:
            changed += [*self._tasks, *(path.name.partition(".")[0] for path in self.folder.iterdir())]
        numbers = sorted({int(i[1:]) for i in changed if re.fullmatch("t[1-9][0-9]{0,8}", i)})
        read = {f"t{number}": self._read(f"t{number}") for number in numbers}
        # a new dict: other threads may walk the old one
        self._tasks = {i: task for i, task in (self._tasks | read).items() if task}
        self._last_id, self._read_to = max([self._last_id, *numbers]), end  # last, so that Ctrl-C loses nothing
        self._scanned = time.monotonic() if scan else self._scanned

    def _read(self, task_id: str) -> dict | None:
        """The task in a file; None if there is none, or a damaged one, which is set aside and named."""
        path = self.folder / f"{task_id}.json"
        try:
            return parse_task(path.read_bytes(), task_id, self.more) if path.exists() else None
        except (ValueError, RecursionError, IsADirectoryError) as error:
            aside = path.replace(f"{path}.damaged")
            core.emit("notice", text=f"{path} holds no task ({error}); set aside as {aside.name}")


class TaskKeeping(Agent):
    """An agent whose tasks are in the workspace's graph; it is told which an earlier run left open."""

    def __init__(self, workspace: core.Workspace, **options):
        super().__init__(workspace, **{"tools": core.extended_tools(workspace), **options})
        self.graph = TaskGraph(workspace.root / ".agent" / "tasks")
        reading = (core.Tool.of(run, read_only=True) for run in (self.task_get, self.task_list, self.task_next))
        own = core.registry(core.Tool.of(self.task_create), core.Tool.of(self.task_update), *reading)
        # they touch nothing but the graph: a question each time would only tire the user
        self.permissions.allow += own.keys() - {*self.permissions.allow}
        self.tools, self.system, tasks = self.tools | own, self.system + SYSTEM, self.graph.load()
        # what a subagent finds (main/sub) is of this run
        if "/" not in self.name and (left := [i for i in tasks if tasks[i]["status"] in ("pending", "in_progress")]):
            found = f"an earlier run left open: {name_tasks(left, tasks)}"
            self.system += f"\nFound at the start: {found}."  # stays the same while it runs: caching needs that
            core.emit("notice", agent=self.name, text=found)

    def task_create(self, description: str, depends_on: list[str] | None = None,
                    priority: Literal[PRIORITIES] = "medium", key: str = "") -> str:
        """Add a task to the graph, which outlives this conversation; returns its id.

        description says what is to be done, for someone who knows nothing of this conversation.
        depends_on lists the tasks that must be done before, by id or key. Ids are given when a
        task is created, so never guess one: to create several tasks in one reply, give each a key
        (a short word) and let later ones refer to it. priority is high, medium or low.
        """
        task, tasks = self.graph.create(description, depends_on, key, priority=priority)
        return f"created {describe(task, tasks)}"

    def task_update(self, task_id: str, status: Literal[STATUSES] | None = None, result: str | None = None,
                    add_depends_on: list[str] | None = None, remove_depends_on: list[str] | None = None,
                    priority: Literal[PRIORITIES] | None = None) -> str:
        """Change a task, given by id or key: its status, result, priority, or what it depends on.

        Set it to in_progress when you begin it; to done as soon as it is done, with what the tasks
        after it need to know as result; to failed when it cannot be done, with the reason. pending
        puts it back, to be tried again. A task that waits for others cannot be begun.
        """
        task, tasks = self.graph.update(
            task_id, add_depends_on, remove_depends_on, status=status, result=result, priority=priority,
            owner={"in_progress": self.name, "pending": ""}.get(status))
        return describe(task, tasks) + consequences(task, tasks)

    def task_get(self, task_id: str) -> str:
        """Show everything known of one task, given by id or key, with what it blocks and waits for."""
        tasks = self.graph.load()
        task = tasks[resolve(task_id, tasks)]
        task = {**task, "blocks": blocks(task["id"], tasks), "blocked": why_blocked(task, tasks)}
        return json.dumps(task, ensure_ascii=False, indent=1)

    def task_list(self, status: Literal[STATUSES] | None = None) -> str:
        """List the tasks, all or those of one status, a line for each with what it waits for."""
        tasks = self.graph.load()
        shown = [describe(task, tasks) for task in tasks.values() if status in (None, task["status"])]
        return "\n".join(shown) or "there are no such tasks"

    def task_next(self) -> str:
        """Show the task to do next: all it depends on is done; high priority goes first, then age.

        It is only shown: set it to in_progress with task_update when you begin.
        """
        tasks = self.graph.load()
        lines = [describe(task, tasks) for task in ready(tasks)[:1]] or ["no task can be begun now"]
        begun = [describe(task, tasks) for task in tasks.values() if task["status"] == "in_progress"]
        return "\n".join(lines + [f"already begun: {line}" for line in begun])


def show_tasks(agent: TaskKeeping, messages: list[dict], argument: str):
    """the task graph, each task below the first it depends on"""
    from rich import text, tree

    tasks, below = agent.graph.load(), {}  # below: by the id above, "" for none
    for i in tasks:
        below.setdefault(next((other for other in tasks[i]["depends_on"] if other in tasks), ""), []).append(i)
    branches = [("", root := tree.Tree(f"{len(tasks)} task{'s' * (len(tasks) != 1)}"), 0)]
    for above, branch, depth in branches:  # it grows while it is walked
        for task in map(tasks.get, below.pop(above, [])):
            node = branch.add(text.Text(f"{MARKS[now := state(task, tasks)]} {describe(task, tasks)}", STYLES[now]))
            # deeper than this a chain leaves no room for words: it goes on at the left edge
            branches.append((task["id"], *((node, depth + 1) if depth < 5 else (root, 0))))
    if left := name_tasks(sum(below.values(), []), tasks):  # somebody has edited a file: the tools close no cycle
        root.add(text.Text(f"in or behind a cycle: {left} (remove_depends_on ends it)", "red"))
    return root


# the last word is the key
STEPS = {"design the schema": [], "write the migration": ["schema"], "make a backup": [],
         "update the code": ["schema"], "do the switch": ["migration", "backup"], "check it all": ["switch", "code"]}
CREATE = " ++ ".join(f"task_create {step} :: {json.dumps(after)} :: medium :: {step.split()[-1]}"
                     for step, after in STEPS.items())
WORK = "task_update {0} :: in_progress ;; bash echo {0} >> done.txt ;; task_update {0} :: done ;; ".format
DEMO = [
    {"note": "The agent of s01 takes over from a run that was stopped: there are files, but which steps are done?",
     "files": {"schema.sql": "", "migration.sql": ""}, "make": Agent, "prompt": "Go on with the migration.",
     "script": "bash ls ;; say I see a migration.sql, so I would run it now. (There is no backup.)"},
    {"note": "With a graph: six tasks, created in one reply, refer to each other by key. Too early is refused.",
     "prompt": "Migrate the database, with a task for each step. Stop after three tasks.",
     "script": CREATE + " ;; task_update switch :: in_progress ;; task_next ;; "
               + WORK("schema") + WORK("migration") + WORK("backup") + "say Three are done."},
    {"note": "A new run, as after a kill: no conversation, but the graph is there. It goes on with task four.",
     "make": lambda workspace, **options: TaskKeeping(workspace, **options), "prompt": "Go on with the migration.",
     "script": "task_next ;; " + WORK("code") + WORK("switch") + WORK("all") + "task_list ;; say All is done.",
     "after": lambda agent, _: "order: " + ", ".join((agent.workspace.root / "done.txt").read_text().split())},
]

if __name__ == "__main__":
    main(TaskKeeping, session="s07", title="task graph", demo=DEMO, commands={"tasks": show_tasks})
