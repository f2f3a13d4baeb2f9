"""practice_table · what practice.py knows besides the marks in the sessions: tests, bugs, questions

TESTS   number of a fill-in exercise: the tests of its session that judge it, the simplest first,
        without their `test_`. The task, the hints and the function stand in the session itself, as
        comments `# exercise 6.1: ...` and `# hint: ...` inside the function. An exercise that is
        not listed is judged by all tests of its session that name the function.
BUGS    number: a bug that practice.py puts into a copy of the session. `old` must occur exactly once
        there; `new` takes its place. `symptom` is what a user would report. Any mend counts.
ASKED   number: a question on the session's demonstration. `answer` reads it from the events of a
        real run (`--demo --trace`), so no answer is written here; `read` says how, afterwards.
"""

from collections.abc import Callable
from typing import NamedTuple


class Bug(NamedTuple):
    """One wrong decision in a session, with what can be seen of it."""

    session: str
    symptom: str
    old: str
    new: str
    tests: tuple[str, ...]
    hints: tuple[str, ...]


class Question(NamedTuple):
    """Something that a run of the session's demonstration decides."""

    session: str
    text: str
    answer: Callable[[list[dict]], str]
    read: str
    hints: tuple[str, ...]


def steps(events: list[dict], agent: str = "main") -> list[list[dict]]:
    """The events of each prompt to an agent: those of the first, those of the second, and so on."""
    starts = [n for n, event in enumerate(events) if event["kind"] == "user" and event["agent"] == agent]
    return [events[start:end] for start, end in zip(starts, [*starts[1:], len(events)])]


def of(events: list[dict], kind: str, agent: str = "main") -> list[dict]:
    """The events of one kind from one agent."""
    return [event for event in events if event["kind"] == kind and event["agent"] == agent]


TESTS = {
    "1.1": ("an_answer_without_tools_is_the_result", "results_go_back_until_no_tool_is_asked_for",
            "several_calls_of_one_reply_are_answered_in_one_message_in_order",
            "a_run_can_be_continued_with_the_next_prompt", "the_turn_limit_ends_the_run_and_says_so"),
    "1.2": ("several_calls_of_one_reply_are_answered_in_one_message_in_order",
            "an_answer_without_tools_is_the_result",
            "a_call_cut_by_max_tokens_is_not_run_and_the_model_is_told",
            "an_override_composes_and_its_text_follows_the_results",
            "ctrl_c_while_a_call_runs_keeps_what_it_printed_and_answers_the_rest"),
    "2.1": ("definitions_are_listed_with_their_lines_and_nesting",),
    "2.2": ("outline_answers_what_it_cannot_outline", "outline_reads_a_file_of_the_workspace",
            "outline_of_a_file_outside_or_missing_is_refused", "the_loop_is_the_one_of_s01"),
    "3.1": ("completed_is_done", "a_second_task_in_progress_moves_the_first_back",
            "setting_a_status_leaves_the_plan_that_was_given",
            "an_index_outside_of_the_plan_is_refused_with_the_numbers_there_are"),
    "3.2": ("after_a_batch_that_changed_the_plan_it_follows_the_results_once",
            "three_rounds_without_a_change_bring_one_reminder_for_each_batch", "a_change_starts_the_count_anew",
            "nothing_follows_when_all_is_done_or_nothing_was_planned"),
    "4.1": ("calls_come_in_order_with_their_success", "a_call_without_a_result_did_not_succeed"),
    "4.2": ("an_empty_prompt_is_refused", "only_the_final_text_comes_back",
            "the_subagent_starts_with_nothing_but_its_prompt", "the_turn_limit_is_an_error_with_what_was_done",
            "an_end_that_is_no_answer_is_an_error_with_what_was_done",
            "what_stayed_outside_is_shown_and_summed"),
    "5.1": ("of_equal_names_the_first_wins_and_the_others_are_told",),
    "5.2": ("the_listing_has_one_line_for_each_skill", "over_its_budget_the_listing_names_the_rest"),
    "6.1": ("old_results_become_one_line_and_the_newest_three_batches_stay",
            "nothing_is_forgotten_until_eight_thousand_tokens_can_be_freed_at_once",
            "micro_compaction_twice_is_micro_compaction_once", "a_whole_batch_counts_as_one",
            "results_that_are_state_are_never_forgotten", "short_results_and_errors_keep_their_place_and_mark",
            "images_are_forgotten_like_text_and_thinking_is_not_touched"),
    "6.2": ("the_tail_is_as_long_as_the_room_and_never_begins_with_results",
            "the_newest_step_is_kept_however_large_it_is"),
}

BUGS = {
    "1.3": Bug("s01_agent_loop",
               "A reply was cut off by max_tokens in the middle of a long `bash` call. The harness ran the "
               "half command all the same, and a user lost files. It must answer such a call without running it.",
               "if calls and not not_run:", "if calls:",
               ("a_call_cut_by_max_tokens_is_not_run_and_the_model_is_told",),
               ("Look at how Agent.run treats a reply whose stop_reason is in NOT_RUN.",
                "One condition decides whether run_tools is called. What must it know besides `calls`?")),
    "2.3": Bug("s02_tool_use",
               "`outline ../../etc/x.py` shows a file outside the workspace, though `read` refuses the same "
               "path; and a missing file is answered with the name of a Python exception, where `read` says "
               "that it does not exist.",
               'workspace.file(path, "outline").read_bytes()', "(workspace.root / path).read_bytes()",
               ("outline_of_a_file_outside_or_missing_is_refused", "outline_reads_a_file_of_the_workspace"),
               ("Only one line of this session touches the disk.",
                "Joining a root and a path keeps nothing inside the root: `..` leads out of it, and so does a link.",
                "workspace.file(name, tool) gives the path of an existing file, or an error in words.")),
    "3.3": Bug("s03_todo_write",
               "The model forgets its plan for ten rounds and more, and no reminder comes. Yet the plan is open, "
               "and reminder_due(plan, 3) is true.",
               """if message["role"] == "user" and "tool_result" not in kinds:""", """if message["role"] == "user":""",
               ("three_rounds_without_a_change_bring_one_reminder_for_each_batch",
                "the_count_starts_anew_with_each_prompt"),
               ("Print self.rounds in run_tools: what is it after the second batch?",
                "Who sets self.rounds to 0 besides run_tools, and how often?",
                "Results come in messages with the role `user` as well.")),
    "4.3": Bug("s04_subagent",
               "A subagent's last message was cut off in mid-work. The parent was given what there was of it, took "
               "the task for done, and shipped half of it.",
               'if child.stop != "end_turn":', "if not answer:",
               ("an_end_that_is_no_answer_is_an_error_with_what_was_done",
                "the_turn_limit_is_an_error_with_what_was_done", "only_the_final_text_comes_back"),
               ("After a run, agent.stop says why it ended. Who reads it here?",
                "A run that was ended has a last text too: a text is no proof of an end.")),
    "5.3": Bug("s05_skills",
               "A SKILL.md that is edited while the agent runs has no effect until it is started again.",
               "if files == self.skill_files:", "if self.skill_files:",
               ("an_edited_skill_counts_from_the_next_turn",
                "while_nothing_changes_the_prompt_stays_the_same_and_no_file_is_read"),
               ("Follow a request: when does refresh_skills return early?",
                "It may return early only if nothing changed. find_skill_files gives each file's time and size.")),
    "6.3": Bug("s06_compact",
               "After a compaction the agent no longer knew the steps that were open. The summary in "
               ".agent/memory.md stops in the middle of a sentence.",
               'if not summary or reply["stop_reason"] != "end_turn":', "if not summary:",
               ("a_summary_that_fails_changes_nothing_and_says_so", "the_transcript_is_the_whole_conversation_as_json"),
               ("The summary is a reply like any other. How can a reply end?",
                "summarise must refuse a summary that is not whole, as it refuses an empty one.")),
}

ASKED = {
    "1.4": Question("s01_agent_loop",
                    "In the second step of the demonstration the model replies four times, three times with a "
                    "call. How many messages does its last request hold?",
                    lambda events: str(of(steps(events)[1], "request")[-1]["messages"]),
                    "the field `messages` of the last event `request` of the second step",
                    ("The prompt is a message. What does each call add to the conversation?",
                     "A reply with a call, and a message with its result. The last reply is not in its own request.")),
    "4.4": Question("s04_subagent",
                    "In the second step of the demonstration the parent lets a subagent read five files (it lists "
                    "them first). How many calls does the parent make, and how many the subagent? Two numbers.",
                    lambda events: " ".join(str(len(of(steps(events)[1], "tool_call", agent)))
                                            for agent in ("main", "main/sub-1")),
                    "the events `tool_call` of the second step, counted by agent",
                    ("What does the parent's own reply ask for?", "One glob, and a read for each file.")),
    "6.4": Question("s06_compact",
                    "In the first step of the demonstration nothing is forgotten: each log is about 7,000 tokens, the "
                    "window holds 48,000. How many of the eight logs have been read when the API refuses?",
                    lambda events: str(len(of(steps(events)[0], "tool_result"))),
                    "the events `tool_result` before the first `error`",
                    ("Each request sends all results so far.",
                     "The refusal comes with the first request that is too large, after its log has been read.")),
}
