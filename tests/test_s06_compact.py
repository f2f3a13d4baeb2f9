"""Compaction: what is forgotten, what is kept, and that every shortened conversation is still valid."""

import copy
import json
import random

import pytest

import core
import offline_rules
import s06_compact
from s01_agent_loop import Agent
from s03_todo_write import Planning
from s06_compact import Compacting, clip_largest, dump, in_chunks, latest_request, micro, plan_cut
from talk import outputs, played

ALLOWED = core.Permissions(mode="yes")
BIG = "x" * 12_000
THINKING = {"type": "thinking", "thinking": "hm", "signature": "c2lnbmVk"}


def step(number, name="read", result=BIG, calls=1, **extra):
    """One reply with calls and the message with their results."""
    uses = [{"type": "tool_use", "id": f"t{number}_{n}", "name": name, "input": {"path": f"{number}.txt"}} for n in range(calls)]
    results = [{"type": "tool_result", "tool_use_id": use["id"], "content": result, **extra} for use in uses]
    return [{"role": "assistant", "content": uses}, {"role": "user", "content": results}]


def history(*parts):
    return [{"role": "user", "content": "Task A: do it."}, *(message for part in parts for message in part)]


def accepted(agent, messages):
    """Sends what the agent would send, with one more prompt, to the strict stand-in."""
    request = Agent.request(agent, [*messages, {"role": "user", "content": "say still valid"}])
    return core.plain_reply(core.client().messages.create(**request))["content"] != []


@pytest.fixture
def agent(workspace, stand_in):
    return Compacting(workspace, context_window=20_000, permissions=ALLOWED)


# micro ----------------------------------------------------------------------------------


def test_old_results_become_one_line_and_the_newest_three_batches_stay():
    messages = history(*(step(n) for n in range(7)))
    assert micro(messages) == 4 * len(BIG) // 4
    assert outputs(messages)[0] == "[Previous: used read 0.txt, 12000 characters; call it again if needed]"
    assert outputs(messages)[4:] == [BIG] * 3


def test_nothing_is_forgotten_until_eight_thousand_tokens_can_be_freed_at_once():
    messages = history(*(step(n) for n in range(5)))  # two old results, 6,000 tokens
    before = copy.deepcopy(messages)
    assert micro(messages) == 0 and messages == before


def test_micro_compaction_twice_is_micro_compaction_once():
    messages = history(*(step(n) for n in range(9)))
    micro(messages)
    once = copy.deepcopy(messages)
    assert micro(messages) == 0 and messages == once


@pytest.mark.parametrize("name", ["todo_write", "task_list", "load_skill", "list_skills", "compact"])
def test_results_that_are_state_are_never_forgotten(name):
    messages = history(*(step(n, name) for n in range(9)))
    assert micro(messages) == 0 and outputs(messages) == [BIG] * 9


def test_short_results_and_errors_keep_their_place_and_mark():
    messages = history(*(step(n, result="ok") for n in range(3)), *(step(n, is_error=True) for n in range(3, 10)))
    assert micro(messages) > 0
    assert outputs(messages)[:3] == ["ok"] * 3
    assert [block.get("is_error") for _, _, block in core.results_in(messages)] == [None] * 3 + [True] * 7


def test_a_whole_batch_counts_as_one():
    messages = history(*(step(n, calls=4) for n in range(4)))
    micro(messages)
    assert outputs(messages)[4:] == [BIG] * 12 and all(text.startswith("[Previous") for text in outputs(messages)[:4])


def test_images_are_forgotten_like_text_and_thinking_is_not_touched():
    """B052"""
    image = [{"type": "image", "source": {"type": "base64", "media_type": "image/png", "data": BIG}}]
    messages = history(*(step(n, result=image) for n in range(8)))
    for message in messages[1::2]:
        message["content"].insert(0, dict(THINKING))
    micro(messages)
    assert outputs(messages)[0].startswith("[Previous: used read")
    assert all(message["content"][0] == THINKING for message in messages[1::2])


# the cut --------------------------------------------------------------------------------


def test_the_tail_is_as_long_as_the_room_and_never_begins_with_results():
    messages = history(*(step(n, result="y" * 400) for n in range(20)))
    for room in range(0, 3000, 50):
        tail = messages[plan_cut(messages, room):]
        assert not core.has_results(tail[0]) and len(tail) >= 2
    assert plan_cut(messages, 10**6) == 0
    assert plan_cut(messages, 900) > plan_cut(messages, 1800) > 0


def test_the_newest_step_is_kept_however_large_it_is():
    messages = history(step(1), step(2, result="z" * 10**6))
    assert messages[plan_cut(messages, 10):] == messages[-2:]


def test_the_latest_request_is_found_behind_results_and_in_an_earlier_summary():
    """B051"""
    messages = history(step(1), [{"role": "user", "content": "Task B: now this.\nWord for word."}], step(2))
    assert latest_request(messages) == "Task B: now this.\nWord for word."
    text = s06_compact.SUMMARY.format(path="p", summary="A is done.", request="Task B: now this.")
    assert latest_request([{"role": "user", "content": text}, *step(3)]) == "Task B: now this."


def test_the_summariser_sees_clipped_results_and_neither_thinking_nor_bytes_of_images():
    messages = history(step(1))
    messages[1]["content"].insert(0, THINKING)
    lines = dump(messages)
    assert len(lines[2]) < s06_compact.DUMPED + 200 and "signature" not in lines[1]
    assert [json.loads(line)["role"] for line in lines] == ["user", "assistant", "user"]


def test_chunks_hold_everything_in_order_and_none_is_too_large():
    lines = [str(n) * n for n in range(1, 90)] + ["w" * 5000]
    chunks = in_chunks(lines, 400)
    assert all(sum(map(len, chunk)) <= 400 for chunk in chunks)
    assert [line for chunk in chunks for line in chunk][:89] == lines[:89]


def test_the_largest_result_is_cut_with_a_mark():
    messages = history(step(1, result="small" * 100), step(2, result="L" * 40_000))
    assert clip_largest(messages, 5_000) > 4_000
    assert "characters left out" in outputs(messages)[1] and outputs(messages)[0] == "small" * 100
    assert clip_largest(history(step(1, result="tiny")), 5_000) == 0


# the agent ------------------------------------------------------------------------------


def test_a_run_outgrows_its_window_and_every_step_is_played_once(agent, stand_in, events):
    """Through the stand-in's own strict window of 20,000 tokens, with an extractive summary."""
    agent.model = "stand-in-20k"
    script = " ;; ".join(f"bash echo step {n}; head -c 24000 /dev/zero | tr '\\0' x" for n in range(20)) + " ;; say Done."
    messages = played(agent, script)
    calls = [event["input"]["command"].split(";")[0] for event in events if event["kind"] == "tool_call"]
    assert core.text_of(messages[-1]["content"]) == "Done." and calls == [f"echo step {n}" for n in range(20)]
    assert len([event for event in events if event["kind"] == "compaction"]) >= 3
    assert agent.size(messages) < 20_000 and accepted(agent, messages)


def test_a_run_of_many_turns_does_not_grow(agent, stand_in):
    tool = core.Tool("note", "", {"type": "object", "properties": {"n": {"type": "integer"}}}, lambda n: f"noted {n} " * 40)
    agent.tools = agent.tools | core.registry(tool)
    messages, largest = [], 0
    for first in range(0, 160, 20):
        played(agent, " ;; ".join(f"note {n}" for n in range(first, first + 20)) + " ;; say Done.", messages)
        largest = max(largest, agent.size(messages))
    assert largest < 20_000 and list((agent.folder / "transcripts").iterdir())


def test_the_transcript_is_the_whole_conversation_as_json(agent):
    messages = history(*(step(n) for n in range(8)))
    whole = copy.deepcopy(messages)
    agent.compact(messages)
    [transcript] = (agent.folder / "transcripts").iterdir()
    assert [json.loads(line) for line in transcript.read_text().splitlines()] == whole


def test_the_latest_request_stays_word_for_word_in_mid_turn(agent):
    """B051"""
    messages = history(step(1), [{"role": "user", "content": "Task B: keep  THIS,\nexactly."}], *(step(n) for n in range(2, 9)))
    assert agent.compact(messages)
    assert messages[0]["content"].endswith("<request>\nTask B: keep  THIS,\nexactly.\n</request>")
    assert messages[1]["role"] == "assistant" and accepted(agent, messages)


def test_a_plan_changed_in_the_step_that_fills_the_window_is_not_one_step_old_afterwards(workspace, stand_in, events):
    """B031: the newest step, with what follows its results, stays word for word."""
    class Both(Planning, Compacting):
        pass

    agent = Both(workspace, context_window=20_000, permissions=ALLOWED)
    fill = "bash head -c 20000 /dev/zero | tr '\\0' {}"
    script = f'todo_write ["one", "two", "three"] ;; {fill.format("v")} ;; {fill.format("x")} ;; {fill.format("y")}'
    played(agent, f"{script} ;; todo_update 1 :: done ++ todo_update 2 :: done ++ {fill.format('z')} ;; say Done.")
    assert "compaction" in [event["kind"] for event in events]
    last = stand_in.requests[-1]["body"]["messages"]
    newest = str(last[-1]["content"])
    assert "was summarised" in str(last[0]) and "1. [x] one\\n2. [x] two\\n3. [ ] three" in newest


def test_a_summary_is_followed_by_an_acknowledgement_where_the_tail_begins_with_a_prompt(agent):
    messages = history(*(step(n, result=BIG * 3) for n in range(8)), [{"role": "user", "content": "Task B."}])
    agent.compact(messages)
    assert messages[1:] == [s06_compact.GO_ON, {"role": "user", "content": "Task B."}]
    assert messages[-1]["content"] == "Task B." and messages[0]["content"].endswith("<request>\nTask B.\n</request>")


@pytest.mark.parametrize("fault", ["empty", "max_tokens", "refusal", "401"])
def test_a_summary_that_fails_changes_nothing_and_says_so(agent, stand_in, events, fault):
    """B050"""
    messages = history(*(step(n, result="x" * 6000) for n in range(6)))
    before = copy.deepcopy(messages)
    stand_in.inject(fault)
    assert agent.compact(messages) is False and messages == before
    assert "nothing was changed" in events[-1]["text"] and not (agent.folder / "memory.md").exists()


@pytest.mark.parametrize("fault", ["refusal", "401", "empty"])
def test_a_summary_that_fails_over_the_limit_cuts_nothing_either(agent, stand_in, events, fault):
    """B050"""
    messages = history(*(step(n, name="todo_read", result="x" * 30_000) for n in range(4)))
    before = copy.deepcopy(messages)
    stand_in.inject(fault, fault)
    assert agent.compact(messages) is False and messages == before
    with pytest.raises(core.ModelError, match="nothing was changed: .*(x-api-key|not whole)"):
        agent.compact(messages)  # in a row: the end of it, and the reason is the failure and not the conversation
    assert messages == before and agent.compact(messages)


def test_tokens_that_are_denser_than_the_estimate_leave_a_short_enough_tail(agent):
    """B048: Chinese has about a token for each character, four times the estimate."""
    messages = history(*(step(n, result="字" * 300) for n in range(60)))
    agent.tokens, agent.counted = 4 * core.estimate_tokens(messages), len(messages)
    assert agent.compact(messages)
    assert core.estimate_tokens(messages) * 4 < 0.5 * agent.window


def test_an_image_in_a_tail_that_is_too_large_is_left_out_and_never_written_as_text(agent):
    image = {"type": "image", "source": {"type": "base64", "media_type": "image/png", "data": "A" * 400_000}}
    messages = history(step(1, result=[{"type": "text", "text": "caption"}, *[image] * 20]))
    agent.compact(messages)
    assert "media left out" in outputs(messages)[0] and "AAAA" not in str(outputs(messages))


def test_a_request_with_the_summarys_own_tags_stays_word_for_word():
    """B051"""
    asked = "Explain:\n<request>\n<a/>\n</request>"
    assert latest_request([{"role": "user", "content": asked}]) == asked
    summary = s06_compact.SUMMARY.format(path="p", summary="s", request=asked)
    assert latest_request([{"role": "user", "content": summary}]) == asked


def test_a_back_end_that_counts_no_prompt_is_compacted_by_estimate(agent):
    """contracts D: usage may be missing, or count only what was written."""
    agent.tokens, agent.counted = 0, 3
    assert agent.size(history(*(step(n) for n in range(8)))) > 20_000


def test_a_conversation_far_over_the_window_is_summarised_in_chunks(agent, stand_in):
    """B049"""
    agent.model = "stand-in-20k"
    messages = history(*(step(n, result=f"{n} " * 1500) for n in range(60)))
    assert agent.size(messages) > 1.5 * agent.window
    assert agent.compact(messages) and agent.size(messages) < agent.window
    assert len([request for request in stand_in.requests if request["status"] == 200]) > 1 and accepted(agent, messages)


def test_a_tail_that_is_too_large_alone_is_cut(agent):
    messages = history(step(1, result="h" * 200_000))
    assert agent.compact(messages) and agent.size(messages) < agent.window
    assert "left out" in outputs(messages)[0] and accepted(agent, messages)


def test_what_cannot_be_made_to_fit_ends_with_a_clear_error_and_not_in_a_loop(agent, stand_in):
    """B048"""
    agent.system = "s" * 100_000
    messages = [{"role": "user", "content": "say hi"}]
    agent.run(messages)  # the first time it is tried all the same
    agent.add(messages, {"role": "user", "content": "say hi"})
    with pytest.raises(core.ModelError, match="compacting does not help"):
        agent.run(messages)
    assert len(stand_in.requests) <= 3


def test_a_prompt_the_api_finds_too_long_is_compacted_once_and_sent_again(agent, stand_in):
    messages = history(*(step(n, result="x" * 6000) for n in range(6)))
    agent.add(messages, {"role": "user", "content": "say Done."})
    stand_in.inject("400:prompt")
    assert agent.run(messages) == "Done."


def test_the_model_can_ask_for_it_and_its_call_stays_paired(agent, stand_in):
    script = " ;; ".join(f"bash echo {n}; head -c 3000 /dev/zero | tr '\\0' x" for n in range(8))
    messages = played(agent, script + " ;; compact the numbers ;; say Done.")
    assert core.text_of(messages[-1]["content"]) == "Done." and "summarised" in messages[0]["content"]
    asked = [request for request in stand_in.requests if "Keep above all: the numbers" in json.dumps(request["body"])]
    assert len(asked) == 1 and accepted(agent, messages)


def test_a_new_run_begins_with_the_memory_once_and_says_so(agent, workspace, events):
    messages = history(*(step(n) for n in range(8)))
    agent.compact(messages)
    again = Compacting(workspace, permissions=ALLOWED)
    assert "memory of" in events[-1]["text"]
    messages = played(again, "say hi")
    assert "What you remember" in messages[0]["content"] and [m["role"] for m in messages[:3]] == ["user", "assistant", "user"]
    messages = played(again, "say hi")  # after /clear
    assert len(messages) == 2


def test_a_memory_that_was_written_by_hand_is_remembered_whole(workspace, events):
    core.atomic_write(workspace.root / ".agent" / "memory.md", b"Never touch main.")
    agent = Compacting(workspace)
    assert agent.memory.endswith("\nNever touch main.") and "memory of Never touch main. loaded" in events[-1]["text"]


def test_memory_can_be_shown_and_removed(agent):
    assert s06_compact.show_memory(agent, [], "") == "nothing is remembered"
    agent.compact(history(*(step(n) for n in range(8))))
    assert "Task A" in s06_compact.show_memory(agent, [], "")
    assert s06_compact.show_memory(agent, [], "clear") == "nothing is remembered"


def test_instructions_of_the_project_are_in_the_system_prompt(workspace, stand_in):
    (workspace.root / "CLAUDE.md").write_text("Always use tabs.")
    (workspace.root / "AGENTS.md").symlink_to("CLAUDE.md")
    system = Compacting(workspace).request([])["system"]
    assert system.count("Always use tabs.") == 1
    (workspace.root / "CLAUDE.md").write_text("a" * 50_000)
    assert "left out" in Compacting(workspace).request([])["system"]


def test_of_a_huge_file_only_a_part_is_read(workspace):
    with open(workspace.root / "CLAUDE.md", "wb") as file:
        file.truncate(20_000_000_000)  # a sparse file: reading all of it would take the memory of the machine
    assert len(Compacting(workspace).system) < 20_000


def test_instructions_that_lead_outside_are_not_read(workspace, stand_in, tmp_path):
    (tmp_path / "secret").write_text("secret")
    (workspace.root / "AGENTS.md").symlink_to(tmp_path / "secret")
    assert "secret" not in Compacting(workspace).request([])["system"]


def test_ctrl_c_in_a_compaction_changes_nothing(agent, stand_in):
    messages = history(*(step(n) for n in range(8)))
    before = copy.deepcopy(messages)

    def interrupt(event):
        if event["kind"] == "reply":
            raise KeyboardInterrupt

    core.listeners.append(interrupt)
    with pytest.raises(KeyboardInterrupt):
        agent.compact(messages)
    assert messages == before


def generated(chance):
    """A history of mixed calls, batches, errors, images, thinking, reminders and prompts."""
    messages, number = [{"role": "user", "content": "The first task."}], 0
    for _ in range(chance.randint(1, 25)):
        kind = chance.random()
        if kind < 0.15:
            messages.append({"role": "assistant", "content": [{"type": "text", "text": "Done so far."}]})
            messages.append({"role": "user", "content": chance.choice(["Next task.", [{"type": "text", "text": "Next <b>."}]])})
            continue
        number += 1
        image = [{"type": "image", "source": {"type": "base64", "media_type": "image/png", "data": "A" * 4000}}]
        text = "r" * chance.choice([1, 300, 3000, 20_000])
        use, results = step(number, chance.choice(["read", "bash", "todo_write"]), chance.choice([text, text, image]),
                            chance.choice([1, 1, 3]), **({"is_error": True} if chance.random() < 0.2 else {}))
        if chance.random() < 0.3:
            use["content"].insert(0, dict(THINKING))
        if chance.random() < 0.3:
            results["content"].append({"type": "text", "text": "<reminder>look at the plan</reminder>"})
        messages += [use, results]
    return messages


def test_three_hundred_generated_histories_stay_valid(agent, stand_in):
    for seed in range(300):
        chance = random.Random(seed)
        messages = generated(chance)
        thinking = [block for m in messages for block in core.as_blocks(m["content"]) if block["type"] == "thinking"]
        agent.tokens = agent.stuck = 0
        agent.context_window = chance.choice([6_000, 20_000, 60_000])
        for _ in range(chance.randint(1, 2)):
            micro(messages)
            agent.compact(messages)
        if seed % 10 == 0:
            assert accepted(agent, messages), seed
        else:  # the stand-in's own rules, without the way through sockets
            offline_rules.check(Agent.request(agent, [*messages, {"role": "user", "content": "next"}]), 10**9)
        assert all(block in thinking for m in messages for block in core.as_blocks(m["content"]) if block["type"] == "thinking")
