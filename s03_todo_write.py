"""s03 · plan before acting: the plan is the state of a tool, and it comes back while work is open

Pain    Asked for three things, the agent of s02 does the first, finds something interesting, and
        follows that. The other two are far up in the conversation by then, and nothing says
        that they are open: `python s03_todo_write.py --demo` shows it first.
Idea    Let the model write its plan down with a tool, outside of the conversation. The harness
        does not read the plan's words, it only counts: what changed is shown again, and a plan
        that nobody touches comes back by itself, at the end, where a model looks first.

            todo_write, todo_update ─► .agent/todo.json ◄─ the next run finds it
                                            │
            a batch of calls ─► results ─► did the plan change?
                                            ├ yes ───────────────────────────► the plan, once
                                            └ no, 3 rounds long, work is open ► one <reminder>

        A round is one batch of calls, however many run in it. Rounds are counted from the last
        user prompt, since a new prompt is itself a fresh look at the work.
Change  run_tools: after the batch, one block of text follows the results. Three tools. Their
        errors show the plan (run_tool), and the system prompt asks for a plan first.
Cost    The plan is sent once more with each change, the open steps with each reminder; both are
        appended, so what came before stays cached. A plan for a single step is a waste: the
        system prompt says so.
Try     todo_write ["read it", "change it"] ;; todo_update 1 :: done ;; bash date ;; bash id ;; bash pwd
        Then /todo. Then leave and start again.
Look for the reminder behind the third command: it names the step that is still open.
Builds on s01_agent_loop.py, s02_tool_use.py (for the demonstration)
"""

import json
import re
from collections.abc import Callable
from pathlib import Path
from typing import Literal

import core
import s02_tool_use
from console import main
from s01_agent_loop import Agent

STALE_ROUNDS = 3  # batches without a change of the plan, after which each one carries a reminder
TASK_CHARACTERS = 500  # of one task; a plan is sent often, so it must stay a list
MARKS = {"pending": "[ ]", "in_progress": "[>]", "done": "[x]"}
STATUS = Literal["pending", "in_progress", "done", "completed"]  # some models know done as completed
# what a terminal would obey instead of show, what UTF-8 cannot say, and what would end the tags that a plan
# comes in
UNSHOWABLE = re.compile("[\x00-\x1f\x7f-\x9f\u202a-\u202e\u2066-\u2069\ud800-\udfff]|<(?=/\\s*(?i:notification|reminder))")
TASK = {"type": ["string", "object"], "required": ["task"], "additionalProperties": False,
        "properties": {"task": {"type": "string"}, "status": core.field_schema(STATUS)}}
PLAN = {"type": "object", "required": ["tasks"], "additionalProperties": False,  # what todo_write takes,
        "properties": {"tasks": {"type": "array", "items": TASK}}}               # and what the file holds
PLAN_FIRST = """
For work of several steps write a plan with todo_write before anything else, one task for each step.
Set a task to in_progress when you begin it and to done as soon as it is done, before you go on.
When you learn something that changes the plan, write it anew. A single step needs no plan."""
FOUND = """
When this session began, an earlier one had left an open plan (todo_read shows what became of it):
{plan}
Go on with it if that is what the user wants; otherwise replace it."""


# what a plan is: no model, no files --------------------------------------------------


def normalise(tasks: list[str | dict]) -> list[dict]:
    """Tasks as {task, status}, each text on one line; raises ToolError for a blank one."""
    plan = []
    for number, given in enumerate(tasks, 1):
        given = given if isinstance(given, dict) else {"task": given}
        text = " ".join(UNSHOWABLE.sub(" ", given["task"]).split())[:TASK_CHARACTERS]
        if not text:
            raise core.ToolError(f"task {number} is blank; say in a few words what is to be done")
        status = given.get("status", "pending")
        plan.append({"task": text, "status": "done" if status == "completed" else status})
    return plan


def set_status(plan: list[dict], index: int, status: str) -> list[dict]:
    """The plan with the new status of one task; `index` counts from 1, ToolError if there is none.

    At most one task is in progress: a second one moves the first back to pending, because a plan
    that is in two places at once says no longer where the work is.
    """
    # exercise 3.1: change one status; the plan that was given stays as it is. No such index: a core.ToolError
    # with "there is no task 9; the tasks are 1 to 3". `completed` is another word for done.
    # hint: index 0 and -1 would work in Python; to the model they must be errors
    # hint: build new dicts, {**task, "status": ...}, instead of changing those of the caller
    if not 1 <= index <= len(plan):
        known = f"the tasks are 1 to {len(plan)}" if plan else "write a plan with todo_write first"
        raise core.ToolError(f"there is no task {index}; {known}")
    first = {"in_progress": "pending"} if status == "in_progress" else {}
    changed = [{**task, "status": first.get(task["status"], task["status"])} for task in plan]
    changed[index - 1]["status"] = "done" if status == "completed" else status
    return changed


def moved_back(before: list[dict], after: list[dict]) -> str:
    """A word about the tasks that had to go back because another one is in progress now."""
    names = [f"task {number}" for number, (old, new) in enumerate(zip(before, after), 1)
             if (old["status"], new["status"]) == ("in_progress", "pending")]
    busy = any(task["status"] == "in_progress" for task in after)
    return f"; only one may be in progress, so back to pending: {', '.join(names)}" if names and busy else ""


def is_open(plan: list[dict]) -> bool:
    """Whether anything is left to do."""
    return any(task["status"] != "done" for task in plan)


def reminder_due(plan: list[dict], rounds: int) -> bool:
    """Whether the model must be reminded after so many batches without a change of the plan."""
    return rounds >= STALE_ROUNDS and is_open(plan)


def progress(plan: list[dict]) -> str:
    """How far a plan is, and what is being done: 1 of 3 done; now: read the tests."""
    done = sum(task["status"] == "done" for task in plan)
    now = "".join(f"; now: {task['task']}" for task in plan if task["status"] == "in_progress")
    return f"{done} of {len(plan)} done{now}"


def render(plan: list[dict], only_open: bool = False) -> str:
    """The plan as the model sees it: a line for each task, numbered from 1."""
    lines = [f"{number}. {MARKS[task['status']]} {task['task']}" for number, task in enumerate(plan, 1)
             if not (only_open and task["status"] == "done")]
    return "\n".join(lines) or "(the plan is empty)"


# the acting half ---------------------------------------------------------------------


class Plan:
    """One agent's tasks, in a file or (`file` None) in memory, and the tools that keep them."""

    def __init__(self, file: Path | None, agent: str):
        self.file, self.agent, self.memory = file, agent, []
        self.tools = core.registry(core.Tool.of(self.todo_write, input_schema=PLAN),
                                   core.Tool.of(self.todo_update),
                                   core.Tool.of(self.todo_read, read_only=True))

    def todo_write(self, tasks: list) -> str:
        """Write the plan: a list of tasks in the order of work, as texts or as {task, status}.

        Use it before work of several steps, and again when the plan turns out to be wrong: it
        replaces all tasks. Status is pending (when not given), in_progress or done; at most one
        task is in progress.
        """
        wanted = new = normalise(tasks)
        for index, task in enumerate(wanted, 1):
            if task["status"] == "in_progress":
                new = set_status(new, index, "in_progress")
        before, _ = self.change(lambda _: new)
        what = "no change, this already is the plan" if before == new else "stored"
        return f"{what}{moved_back(wanted, new)}:\n{render(new)}"

    def todo_update(self, index: int, status: STATUS) -> str:
        """Set the status of one task of the plan; index is its number there, counted from 1.

        Set a task to in_progress when you begin it, and to done at once when it is done.
        """
        before, after = self.change(lambda tasks: set_status(tasks, index, status))
        what = "no change, it already is" if before == after else "now"
        task = after[index - 1]
        return f"task {index}, {task['task']}: {what} {task['status']}{moved_back(before, after)}"

    def todo_read(self) -> str:
        """Show the plan with the status of each task."""
        return render(self.tasks())

    def tasks(self) -> list[dict]:
        """The present tasks. A file that holds no plan is set aside and named in a notice."""
        if self.file is None:
            return self.memory
        try:
            stored = json.loads(self.file.read_bytes())
            if wrong := core.problems(stored, PLAN):
                raise ValueError(wrong[0])
            return normalise(stored["tasks"])
        except FileNotFoundError:  # no plan yet, or set aside by another reader
            return []
        except (core.ToolError, OSError, ValueError, RecursionError) as error:
            damaged = f"{self.file.name}.damaged"
            self.file.replace(self.file.with_name(damaged))
            core.emit("notice", agent=self.agent, text=f"{self.file.name} holds no plan ({error}); kept as {damaged}")
            return []

    def change(self, edit: Callable[[list[dict]], list[dict]]) -> tuple[list[dict], list[dict]]:
        """Makes edit(tasks) the tasks, without another process coming between; returns both."""
        if self.file is None:
            before, self.memory = self.memory, edit(self.memory)
            return before, self.memory
        with core.locked(self.file):
            before = self.tasks()
            after = edit(before)
            if after != before:
                text = json.dumps({"tasks": after}, ensure_ascii=False, indent=1)
                core.atomic_write(self.file, text.encode("utf-8"))
        return before, after


class Planning(Agent):
    """An agent whose plan is shown after each change, and comes back when it goes stale."""

    def __init__(self, workspace: core.Workspace, **options):
        super().__init__(workspace, **{"tools": core.extended_tools(workspace), **options})
        subagent = "/" in self.name  # its plan ends with it, and is never its parent's
        self.plan = Plan(None if subagent else workspace.root / ".agent" / "todo.json", self.name)
        self.tools, self.rounds = self.tools | self.plan.tools, 0
        # they touch nothing but the plan: to be asked each time would only tire the user
        self.permissions.allow += self.plan.tools.keys() - {*self.permissions.allow}
        self.system += PLAN_FIRST
        tasks = self.plan.tasks()
        if is_open(tasks):  # in a part of the prompt that will not change: that keeps it cached
            self.system += FOUND.format(plan=render(tasks))
            core.emit("notice", agent=self.name, text=f"an earlier run left an open plan: {progress(tasks)}")

    def add(self, messages: list[dict], message: dict) -> None:
        """A prompt starts the count of rounds anew; results, which have the same role, do not."""
        kinds = {block["type"] for block in core.as_blocks(message["content"])}
        if message["role"] == "user" and "tool_result" not in kinds:
            self.rounds = 0
        super().add(messages, message)

    def run_tools(self, calls: list[dict], answers: dict[str, dict]) -> None:
        """The batch; behind its results comes the plan if it changed, or a reminder if one is due."""
        # exercise 3.2: a batch that changed the plan is followed by all of it, in <notification> tags. One
        # that did not is a round more, and followed by the open tasks in <reminder> tags if reminder_due says
        # so.
        # hint: compare self.plan.tasks() before and after super().run_tools(calls, answers)
        # hint: answers["plan"] = {"type": "text", "text": ...} goes to the model behind the results
        # hint: self.rounds counts batches, not calls, and a change sets it to 0; render(tasks,
        # only_open=True)
        before = self.plan.tasks()
        super().run_tools(calls, answers)
        tasks = self.plan.tasks()
        self.rounds = self.rounds + bool(calls) if tasks == before else 0  # the final answer is no round
        if tasks != before:
            text = f"<notification>\nThe plan, {progress(tasks)}:\n{render(tasks)}\n</notification>"
            core.emit("notice", agent=self.name, text=f"plan: {progress(tasks)}")
        elif calls and reminder_due(tasks, self.rounds):
            text = (f"<reminder>\nFor {self.rounds} rounds the plan has not changed. Still open:\n"
                    f"{render(tasks, only_open=True)}\n"
                    "Set to done what is done, and go on with what is open.\n</reminder>")
            core.emit("notice", agent=self.name, text=f"reminded of the plan: {progress(tasks)}")
        else:
            return
        answers["plan"] = {"type": "text", "text": core.clip(text)}

    def run_tool(self, call: dict) -> dict:
        """One call; an error of a todo tool shows the plan, so that the next call can be right."""
        result = super().run_tool(call)
        if result.get("is_error") and call["name"] in self.plan.tools:
            text = f"{result['content']}\nThe plan is:\n{render(self.plan.tasks())}"
            return core.tool_result(call, text, is_error=True)
        return result


def show_todo(agent: Planning, messages: list[dict], argument: str):
    """the plan, and how far it is"""
    from rich.console import Group
    from rich.progress_bar import ProgressBar
    from rich.table import Table
    from rich.text import Text

    tasks = agent.plan.tasks()
    if not tasks:
        return "there is no plan yet"
    done = sum(task["status"] == "done" for task in tasks)
    styles = {"in_progress": "bold", "done": "dim"}
    table, bar = Table.grid(padding=(0, 1)), Table.grid(padding=(0, 1))
    for number, task in enumerate(tasks, 1):  # Text is shown as it is, whatever it looks like
        words = (f"{number:>2}", MARKS[task["status"]], task["task"])
        table.add_row(*(Text(word, overflow="fold") for word in words), style=styles.get(task["status"]))
    bar.add_row(ProgressBar(len(tasks), done, width=24), Text(f"{done} of {len(tasks)} done"))
    return Group(table, bar)


PROJECT = {
    "app.py": 'from wait import pause\n\n\ndef greet():\n    pause()  # why so slow?\n    return "Hello"\n',
    "wait.py": "import time\n\n\ndef pause():\n    time.sleep(30)\n",
    "version.txt": "1\n", "CHANGES.md": "# Changes\n"}
ASKED = "Rename greet to welcome in app.py, set the version to 2, and note it in CHANGES.md."


def changes_made(agent: Agent, messages: list[dict]) -> str:
    """How much of what the demonstration asks for is in the files."""
    wanted = {"app.py": "welcome", "version.txt": "2", "CHANGES.md": "welcome"}
    made = [word in (agent.workspace.root / name).read_text() for name, word in wanted.items()]
    return f"{sum(made)} of the {len(made)} changes that were asked for are in the files."


DEMO = [
    {"note": "Without a plan (the agent of s02): three things are asked for, the first leads astray.",
     "files": PROJECT,
     "make": s02_tool_use.make_agent,
     "prompt": ASKED,
     "script": "edit app.py :: def greet :: def welcome ;; read app.py ;; grep sleep ;; read wait.py ;; "
               "edit wait.py :: sleep(30) :: sleep(1) ;; say Renamed. And I found why it is slow.",
     "after": changes_made},
    {"note": "With a plan it is led astray in the same way, but three rounds later the open steps return.\n"
             "(The turn limit is set low here, to cut the work off before its last step.)",
     "files": PROJECT,
     "make": lambda workspace, **options: Planning(workspace, **options | {"max_turns": 7}),
     "prompt": ASKED,
     "script": 'todo_write {"tasks": [{"task": "rename greet in app.py", "status": "in_progress"}, '
               '"set the version to 2", "note it in CHANGES.md"]} ;; '
               "edit app.py :: def greet :: def welcome ++ todo_update 1 :: done ;; read app.py ;; "
               "grep sleep ;; read wait.py ;; say Back to the plan. ;; todo_update 2 :: in_progress ++ "
               "bash echo 2 > version.txt ;; todo_update 2 :: done ;; say I never get to say this.",
     "after": changes_made},
    {"note": "A new run, an empty conversation: the plan is a file, and the work goes on where it was cut.",
     "make": Planning,
     "prompt": "Go on with the plan.",
     "script": "todo_update 3 :: in_progress ++ bash echo '2: greet is now welcome' >> CHANGES.md ;; "
               "todo_update 3 :: done ;; say All three are done. wait.py sleeps 30 s: shall I change it?",
     "after": changes_made},
]

if __name__ == "__main__":
    main(Planning, session="s03", title="plan before acting", demo=DEMO, commands={"todo": show_todo})
