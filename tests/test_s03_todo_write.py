"""The plan: what a list of tasks may be, how it is kept, and when it comes back to the model."""

import io
import json
import multiprocessing

import pytest

import core
import s03_todo_write
from s01_agent_loop import Agent
from s03_todo_write import (
    DEMO,
    STALE_ROUNDS,
    Planning,
    is_open,
    moved_back,
    normalise,
    progress,
    reminder_due,
    render,
    set_status,
    show_todo,
)
from talk import played

THREE = 'todo_write ["first", "second", "third"]'


def stored(workspace):
    return json.loads((workspace.root / ".agent" / "todo.json").read_text(encoding="utf-8"))["tasks"]


def answered(agent, script):
    """The user messages that a script led to, as lists of blocks, the prompt left out."""
    return [message["content"] for message in played(agent, script)[1:] if message["role"] == "user"]


def results(agent, script):
    return [block for blocks in answered(agent, script) for block in blocks if block["type"] == "tool_result"]


def texts(blocks):
    return [block["text"] for block in blocks if block["type"] == "text"]


def statuses(plan):
    return [task["status"] for task in plan]


@pytest.fixture
def agent(workspace, stand_in):
    return Planning(workspace, permissions=core.Permissions(mode="yes"))


@pytest.fixture
def planner(workspace):
    """An agent that asks no model: its tools are called directly."""
    return Planning(workspace, permissions=core.Permissions(mode="yes"), model="none")


def answer(agent, name, **given):
    return agent.run_tool({"type": "tool_use", "id": "toolu_1", "name": name, "input": given})


# the pure half ---------------------------------------------------------------------------


def test_texts_and_objects_become_tasks():
    assert normalise(["a", {"task": "b", "status": "in_progress"}, {"task": "c"}]) == [
        {"task": "a", "status": "pending"}, {"task": "b", "status": "in_progress"}, {"task": "c", "status": "pending"}]


def test_completed_is_done():
    assert statuses(normalise([{"task": "a", "status": "completed"}])) == ["done"]
    assert statuses(set_status(normalise(["a"]), 1, "completed")) == ["done"]


def test_a_task_is_one_line_that_can_be_shown_and_sent():
    text = normalise(["read\n  the\x1b[31m file\ud800\u202e now"])[0]["task"]
    assert text == "read the [31m file now" and text.encode("utf-8")


def test_a_long_task_is_cut():
    assert len(normalise(["long " * 1000])[0]["task"]) <= s03_todo_write.TASK_CHARACTERS


@pytest.mark.parametrize("blank", ["", " \n ", "\x00"])
def test_a_blank_task_is_refused_by_its_number(blank):
    with pytest.raises(core.ToolError, match="task 2 is blank"):
        normalise(["a", blank])


def test_a_second_task_in_progress_moves_the_first_back():
    one = set_status(normalise(["a", "b", "c"]), 1, "in_progress")
    two = set_status(one, 3, "in_progress")
    assert statuses(two) == ["pending", "pending", "in_progress"]
    assert "task 1" in moved_back(one, two) and "task 3" not in moved_back(one, two)


def test_another_change_of_status_leaves_the_task_in_progress_where_it_is():
    one = set_status(normalise(["a", "b"]), 1, "in_progress")
    assert statuses(set_status(one, 2, "done")) == ["in_progress", "done"]


def test_who_puts_a_task_back_by_hand_is_not_told_so():
    one = set_status(normalise(["a", "b"]), 1, "in_progress")
    assert moved_back(one, set_status(one, 1, "pending")) == ""


def test_setting_a_status_leaves_the_plan_that_was_given():
    plan = normalise(["a"])
    set_status(plan, 1, "done")
    assert statuses(plan) == ["pending"]


@pytest.mark.parametrize("index", [0, -1, 3])
def test_an_index_outside_of_the_plan_is_refused_with_the_numbers_there_are(index):
    with pytest.raises(core.ToolError, match=f"no task {index}; the tasks are 1 to 2"):
        set_status(normalise(["a", "b"]), index, "done")


def test_a_plan_is_rendered_with_numbers_and_marks():
    plan = set_status(set_status(normalise(["a", "b", "c"]), 1, "done"), 2, "in_progress")
    assert render(plan) == "1. [x] a\n2. [>] b\n3. [ ] c"
    assert render(plan, only_open=True) == "2. [>] b\n3. [ ] c"
    assert progress(plan) == "1 of 3 done; now: b"
    assert "empty" in render([])


def test_a_plan_is_open_until_all_of_it_is_done():
    plan = normalise(["a", "b"])
    assert is_open(plan) and not is_open([]) and is_open(set_status(plan, 1, "done"))
    assert not is_open(set_status(set_status(plan, 1, "done"), 2, "done"))


def test_a_reminder_is_due_after_three_rounds_while_work_is_open():
    plan = normalise(["a"])
    assert [reminder_due(plan, rounds) for rounds in range(1, 6)] == [False, False, True, True, True]
    assert not reminder_due([], 99) and not reminder_due(set_status(plan, 1, "done"), 99)


# the tools -------------------------------------------------------------------------------


def test_the_result_echoes_the_stored_list(planner, workspace):
    """B033"""
    result = answer(planner, "todo_write", tasks=["first", "second", "third"])["content"]
    assert "1. [ ] first\n2. [ ] second\n3. [ ] third" in result
    assert [task["task"] for task in stored(workspace)] == ["first", "second", "third"]


def test_the_same_list_again_is_no_change(agent, events):
    """B033: the storm of calls ends, by the words and by the loop's own limit."""
    answers = [result["content"] for result in results(agent, " ;; ".join([THREE] * 10))]
    assert not answers[0].startswith("no change")
    assert len(answers) < 10 and all(answer.startswith("no change") for answer in answers[1:])
    assert len([event for event in events if event.get("text", "").startswith("plan:")]) == 1


def test_the_same_status_again_is_no_change(planner):
    answer(planner, "todo_write", tasks=["first"])
    assert "first: now done" in answer(planner, "todo_update", index=1, status="done")["content"]
    assert "no change" in answer(planner, "todo_update", index=1, status="completed")["content"]


def test_a_new_list_replaces_the_old_one_and_an_empty_one_clears_it(planner, workspace):
    answer(planner, "todo_write", tasks=["first", "second"])
    answer(planner, "todo_write", tasks=["other"])
    assert stored(workspace) == [{"task": "other", "status": "pending"}]
    answer(planner, "todo_write", tasks=[])
    assert stored(workspace) == []


def test_of_two_tasks_in_progress_in_a_list_the_last_stays_and_a_word_says_so(planner, workspace):
    both = [{"task": "a", "status": "in_progress"}, {"task": "b", "status": "in_progress"}]
    assert "back to pending: task 1" in answer(planner, "todo_write", tasks=both)["content"]
    assert statuses(stored(workspace)) == ["pending", "in_progress"]


def test_setting_a_second_task_in_progress_says_what_it_did_to_the_first(planner, workspace):
    answer(planner, "todo_write", tasks=["a", {"task": "b", "status": "in_progress"}])
    result = answer(planner, "todo_update", index=1, status="in_progress")
    assert "back to pending: task 2" in result["content"] and not result.get("is_error")
    assert statuses(stored(workspace)) == ["in_progress", "pending"]


def test_reading_shows_the_plan_or_that_there_is_none(agent):
    before, _, after = results(agent, f"todo_read ;; {THREE} ;; todo_read")
    assert "empty" in before["content"] and after["content"].endswith("3. [ ] third")


@pytest.mark.parametrize("name, given, words", [
    ("todo_write", {"tasks": "a, b"}, "tasks must be array"),
    ("todo_write", {"tasks": [1]}, "tasks[0] must be string or object"),
    ("todo_write", {"tasks": [{"content": "x"}]}, "tasks[0].task is missing"),
    ("todo_write", {"tasks": [{"task": "x", "status": "almost"}]}, "must be one of pending, in_progress, done"),
    ("todo_write", {"tasks": ["x", " "]}, "task 2 is blank"),
    ("todo_write", {}, "tasks is missing"),
    ("todo_update", {"index": 9, "status": "done"}, "no task 9"),
    ("todo_update", {"index": 0, "status": "done"}, "no task 0"),
    ("todo_update", {"index": True, "status": "done"}, "index must be integer"),
    ("todo_update", {"index": 1, "status": "finished"}, "must be one of pending, in_progress, done"),
    ("todo_read", {"all": True}, "all is unknown"),
])
def test_an_error_says_what_is_wrong_and_shows_the_plan(planner, workspace, name, given, words):
    answer(planner, "todo_write", tasks=["first", "second"])
    result = answer(planner, name, **given)
    assert result["is_error"] and words in result["content"]
    assert "1. [ ] first\n2. [ ] second" in result["content"]
    assert statuses(stored(workspace)) == ["pending"] * 2


def test_an_update_without_a_plan_says_what_to_do_first(planner):
    assert "write a plan with todo_write first" in answer(planner, "todo_update", index=1, status="done")["content"]


def test_the_tools_of_the_plan_are_not_asked_for_but_can_be_denied(workspace, stand_in):
    asking = Planning(workspace)
    assert not results(asking, f"{THREE} ;; todo_update 1 :: done")[1].get("is_error")
    assert results(asking, "bash date")[0]["is_error"]
    denied = Planning(workspace, permissions=core.Permissions(mode="yes", deny=["todo_write"]))
    assert "permission denied" in results(denied, "todo_write x")[0]["content"]


# what follows the results ------------------------------------------------------------------


def test_after_a_batch_that_changed_the_plan_it_follows_the_results_once(agent):
    """B034"""
    write, update, other = answered(agent, f"{THREE} ;; todo_update 1 :: done ++ todo_update 2 :: in_progress ++ "
                                         "todo_read ;; bash echo hi")
    assert [block["type"] for block in update] == ["tool_result"] * 3 + ["text"]
    assert "1. [x] first\n2. [>] second\n3. [ ] third" in texts(update)[0] and "<reminder>" not in texts(update)[0]
    assert len(texts(write)) == 1 and texts(other) == []


def test_what_follows_is_what_was_stored_last(agent, workspace):
    """B031: a batch that fails after its change, and one that changes twice."""
    batch = "todo_update 1 :: in_progress ++ todo_update 1 :: done ++ todo_update 7 :: done"
    _, blocks = answered(agent, f"{THREE} ;; {batch}")
    assert render(stored(workspace)) in texts(blocks)[0] and "1. [x] first" in texts(blocks)[0]


def test_three_rounds_without_a_change_bring_one_reminder_for_each_batch(agent):
    """B034: four calls in a batch, one reminder, behind the results."""
    four = " ++ ".join(f"bash echo {n}" for n in range(4))
    batches = answered(agent, f"{THREE} ;; todo_update 1 :: done ;; " + " ;; ".join([four.replace("echo", f"echo {i}")
                                                                          for i in range(5)]))
    assert ["<reminder>" in "".join(texts(batch)) for batch in batches[2:]] == [False, False, True, True, True]
    assert [block["type"] for block in batches[-1]] == ["tool_result"] * 4 + ["text"]
    assert texts(batches[-1])[0].count("<reminder>") == 1
    assert "second" in texts(batches[-1])[0] and "first" not in texts(batches[-1])[0]


def test_a_change_starts_the_count_anew(agent):
    batches = answered(agent, f"{THREE} ;; bash echo 1 ;; bash echo 2 ;; todo_update 1 :: done ;; bash echo 3 ;; bash echo 4 ;; "
                            "bash echo 5")
    assert ["<reminder>" in "".join(texts(batch)) for batch in batches] == [False] * 6 + [True]


def test_a_call_that_changes_nothing_does_not_start_it_anew(agent):
    batches = answered(agent, f"{THREE} ;; todo_read ;; todo_update 9 :: done ;; todo_update 1 :: pending")
    assert "<reminder>" in texts(batches[-1])[0]


def test_the_count_starts_anew_with_each_prompt(agent):
    messages = []
    for script in (f"{THREE} ;; bash echo 1 ;; bash echo 2", "bash echo 3 ;; bash echo 4"):
        agent.add(messages, {"role": "user", "content": script})
        agent.run(messages)
    assert "<reminder>" not in json.dumps(messages)


def test_nothing_follows_when_all_is_done_or_nothing_was_planned(agent):
    echoes = " ;; ".join(f"bash echo {n}" for n in range(5))
    assert "<reminder>" not in json.dumps(answered(agent, echoes))
    assert "<reminder>" not in json.dumps(answered(agent, f"todo_write only ;; todo_update 1 :: done ;; {echoes}"))


def test_a_person_sees_how_far_the_plan_is_and_when_the_model_was_reminded(agent, events):
    results(agent, f"{THREE} ;; todo_update 1 :: in_progress ;; " + " ;; ".join(f"bash echo {n}" for n in range(STALE_ROUNDS)))
    assert [event["text"] for event in events if event["kind"] == "notice"] == [
        "plan: 0 of 3 done", "plan: 0 of 3 done; now: first", "reminded of the plan: 0 of 3 done; now: first"]


def test_the_system_prompt_asks_for_a_plan_first(agent):
    assert "write a plan with todo_write before anything else" in agent.request([])["system"]


def test_an_interrupted_batch_keeps_the_plan_and_a_valid_conversation(workspace, stand_in):
    def stop() -> str:
        raise KeyboardInterrupt

    permissions = core.Permissions(mode="yes")
    agent = Planning(workspace, permissions=permissions, tools=core.registry(core.Tool.of(stop)))
    messages = [{"role": "user", "content": f"{THREE} ++ stop"}]
    with pytest.raises(KeyboardInterrupt):
        agent.run(messages)
    agent.add(messages, {"role": "user", "content": "todo_update 1 :: done"})
    agent.run(messages)
    assert statuses(stored(workspace)) == ["done", "pending", "pending"]


# from run to run -----------------------------------------------------------------------------


def test_a_new_run_finds_the_open_plan_and_says_so(agent, workspace, events):
    results(agent, f"{THREE} ;; todo_update 1 :: done")
    del events[:]
    again = Planning(workspace)
    assert [event["text"] for event in events] == ["an earlier run left an open plan: 1 of 3 done"]
    assert "1. [x] first\n2. [ ] second\n3. [ ] third" in again.request([])["system"]


def test_the_system_prompt_stays_the_same_while_the_plan_changes(agent, workspace):
    results(agent, THREE)
    again = Planning(workspace, permissions=core.Permissions(mode="yes"))
    before = again.request([])
    results(again, "todo_update 1 :: done")
    assert again.request([]) == before


def test_a_finished_plan_is_not_brought_up_again(agent, workspace, events):
    results(agent, "todo_write only ;; todo_update 1 :: done")
    del events[:]
    assert "only" not in Planning(workspace).request([])["system"].removeprefix(agent.system) and events == []


def test_a_folder_without_a_plan_stays_untouched(workspace, stand_in):
    agent = Planning(workspace, permissions=core.Permissions(mode="yes"))
    results(agent, "todo_read ;; bash echo 1 ;; bash echo 2 ;; todo_update 1 :: done")
    assert [path.name for path in workspace.root.rglob("*") if path.suffix == ".json"] == []


@pytest.mark.parametrize("content", ["", "{", "[]", '{"tasks": "x"}', '{"tasks": [{"task": "x", "status": "?"}]}',
                                     '{"tasks": [""]}', "[" * 100_000, "\x00"])
def test_a_damaged_file_is_set_aside_named_and_harms_nothing(workspace, events, content):
    """I7"""
    file = workspace.root / ".agent" / "todo.json"
    core.atomic_write(file, content.encode("utf-8"))
    planner = Planning(workspace, permissions=core.Permissions(mode="yes"), model="none")
    assert file.with_name("todo.json.damaged").read_text() == content and not file.exists()
    assert "todo.json.damaged" in events[0]["text"] and len(events[0]["text"]) < 500
    answer(planner, "todo_write", tasks=["first"])
    assert len(stored(workspace)) == 1


def finish(root, index):
    """Another process that finishes one task."""
    agent = Planning(core.Workspace(root), permissions=core.Permissions(mode="yes"), model="none")
    agent.plan.todo_update(index, "done")


def test_processes_that_share_a_plan_lose_no_change(workspace):
    agent = Planning(workspace, model="none")
    agent.plan.todo_write([f"task {n}" for n in range(8)])
    forked = multiprocessing.get_context("fork" if "fork" in multiprocessing.get_all_start_methods() else "spawn")
    processes = [forked.Process(target=finish, args=(workspace.root, index)) for index in range(1, 9)]
    for process in processes:
        process.start()
    for process in processes:
        process.join(20)
    assert statuses(agent.plan.tasks()) == ["done"] * 8


def test_a_subagent_has_a_plan_of_its_own(agent, workspace, stand_in, events):
    results(agent, THREE)
    del events[:]
    child = Planning(workspace, permissions=agent.permissions, name="main/sub-1")
    assert child.plan.tasks() == [] and events == [] and "first" not in child.request([])["system"]
    blocks = answered(child, "todo_write other ;; todo_update 1 :: done")
    assert "1. [x] other" in texts(blocks[-1])[0]
    assert [task["task"] for task in stored(workspace)] == ["first", "second", "third"]
    assert "other" not in "".join(path.read_text() for path in workspace.root.rglob("*.json"))


def test_it_composes_with_another_mechanism(workspace, stand_in):
    class Greeting(Agent):
        def __init__(self, workspace, **options):
            super().__init__(workspace, **{"tools": core.extended_tools(workspace), **options})
            self.tools = self.tools | core.registry(core.Tool("greet", "", {"type": "object"}, lambda: "hello"))

    class Both(Greeting, Planning, Agent):
        pass

    agent = Both(workspace, permissions=core.Permissions(mode="yes"))
    assert [result["content"][:6] for result in results(agent, "greet ++ todo_write a")] == ["hello", "stored"]


# what a person sees --------------------------------------------------------------------------


def shown(agent, width=60):
    from rich.console import Console

    console = Console(file=io.StringIO(), width=width, color_system=None)
    console.print(show_todo(agent, [], ""))
    return console.file.getvalue().splitlines()


def test_the_command_shows_the_plan_with_its_progress(planner):
    answer(planner, "todo_write", tasks=[{"task": "first", "status": "done"}, "second", "third"])
    lines = shown(planner)
    assert "[x]" in lines[0] and "first" in lines[0] and "1 of 3 done" in lines[-1]


def test_the_command_says_when_there_is_no_plan(planner):
    assert show_todo(planner, [], "") == "there is no plan yet"


@pytest.mark.parametrize("task", ["[bold]not markup[/bold] [/red]", "詰" * 200, "x" * 300, "many words " * 30])
def test_the_command_wraps_what_is_long_and_takes_nothing_for_markup(planner, task):
    from rich.cells import cell_len

    planner.plan.todo_write([task])
    lines = shown(planner, 40)
    assert all(cell_len(line) <= 40 for line in lines)
    words = "".join(line[7:].strip() for line in lines[:-1])
    assert words.replace(" ", "") == task.replace(" ", "")


def test_the_demo_drifts_without_a_plan_and_comes_back_with_one():
    assert "todo_write" not in DEMO[0]["script"] and "todo_write" in DEMO[1]["script"]
    assert DEMO[0]["prompt"] == DEMO[1]["prompt"]
