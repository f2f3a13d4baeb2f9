"""practice_table · what practice.py knows besides the marks in the sessions: tests, bugs, questions

TESTS   number of a fill-in exercise: the tests of its session that judge it, the simplest first,
        without their `test_`. The task, the hints and the function stand in the session itself, as
        comments `# exercise 6.1: ...` and `# hint: ...` inside the function. An exercise that is
        not listed is judged by all tests of its session that name the function.
BUGS    number: a bug that practice.py puts into a copy of the session. `old` must occur exactly once
        there; `new` takes its place. `symptom` is what a user would report. Any mend counts, but
        none that breaks something else: `too_much`, in the same place, is one that does.
ASKED   number: a question on the session's demonstration. `answer` reads it from the events of a
        real run (`--demo --trace`), so no answer is written here; `read` says how, afterwards.
"""

import re
from collections.abc import Callable
from typing import NamedTuple


class Bug(NamedTuple):
    """One wrong decision in a session, with what can be seen of it."""

    session: str
    symptom: str
    old: str
    new: str
    too_much: str
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
    "3.1": ("completed_is_done", "setting_a_status_leaves_the_plan_that_was_given",
            "a_second_task_in_progress_moves_the_first_back",
            "another_change_of_status_leaves_the_task_in_progress_where_it_is",
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
    "7.1": ("a_pending_task_is_ready_when_all_it_depends_on_is_done",
            "the_next_task_is_of_the_highest_priority_and_of_those_the_oldest"),
    "7.2": ("a_cycle_is_found_with_its_path_each_depending_on_the_next",
            "a_chain_of_ten_thousand_tasks_is_walked_without_recursion", "a_refused_change_changes_nothing"),
    "8.1": ("finished_failed_killed_and_stopped_are_four_ends",),
    "8.2": ("a_notice_comes_before_the_next_model_call_behind_the_results",
            "several_ends_at_once_are_all_told_each_once",
            "ctrl_c_around_the_adding_of_a_notice_neither_loses_nor_doubles_it"),
    "9.1": ("lines_are_messages_or_damaged", "a_line_torn_at_any_byte_spoils_no_other_and_is_set_aside"),
    "9.2": ("new_mail_is_in_front_of_the_model_once_and_then_gone_from_the_inbox",
            "mail_that_read_inbox_has_shown_does_not_come_again",
            "an_interrupt_around_the_history_neither_loses_nor_doubles_mail"),
    "10.1": ("a_circle_of_any_length_is_refused_at_once_and_named",
             "who_owes_an_answer_may_ask_a_third_and_owes_it_still",
             "in_all_short_orders_of_events_nobody_waits_in_a_circle_and_nothing_ends_twice"),
    "10.2": ("the_gate_denies_every_tool_that_changes_something_and_no_other",
             "behind_the_gate_the_rules_of_the_lead_hold", "without_an_approved_plan_nothing_changes",
             "who_waits_for_a_review_asks_nothing_else"),
    "11.1": ("the_second_reason_makes_a_task_failed_and_names_both", "a_task_that_is_only_put_down_has_not_failed",
             "what_is_put_back_by_hand_gets_as_many_attempts_again", "a_lease_runs_out_at_its_time_and_that_is_a_reason"),
    "11.2": ("a_renewed_lease_does_not_run_out", "who_has_lost_the_claim_changes_nothing_any_more",
             "the_same_owner_with_a_new_claim_is_somebody_else",
             "a_task_that_the_lead_took_or_whose_file_is_gone_is_lost"),
    "12.1": ("a_branch_name_that_is_taken_gets_a_suffix", "a_branch_called_task_does_not_prevent_a_worktree"),
    "12.2": ("nothing_to_commit_makes_no_commit", "all_of_a_worktree_is_committed_even_where_no_author_is_configured",
             "what_was_staged_and_then_changed_again_is_kept_too",
             "work_on_a_branch_of_the_user_is_not_committed_there"),
}

BUGS = {
    "1.3": Bug("s01_agent_loop",
               "A reply was cut off by max_tokens in the middle of a long `bash` call. The harness ran the "
               "half command all the same, and a user lost files. It must answer such a call without running it.",
               "if calls and not not_run:", "if calls:", "if False:",
               ("a_call_cut_by_max_tokens_is_not_run_and_the_model_is_told",
                "results_go_back_until_no_tool_is_asked_for"),
               ("Look at how Agent.run treats a reply whose stop_reason is in NOT_RUN.",
                "One condition decides whether run_tools is called. What must it know besides `calls`?")),
    "2.3": Bug("s02_tool_use",
               "`outline ../../etc/x.py` shows a file outside the workspace, though `read` refuses the same "
               "path; and a missing file is answered with the name of a Python exception, where `read` says "
               "that it does not exist.",
               'workspace.file(path, "outline").read_bytes()', "(workspace.root / path).read_bytes()", 'b""',
               ("outline_of_a_file_outside_or_missing_is_refused", "outline_reads_a_file_of_the_workspace"),
               ("Only one line of this session touches the disk.",
                "Joining a root and a path keeps nothing inside the root: `..` leads out of it, and so does a link.",
                "workspace.file(name, tool) gives the path of an existing file, or an error in words.")),
    "3.3": Bug("s03_todo_write",
               "The model forgets its plan for ten rounds and more, and no reminder comes. Yet the plan is open, "
               "and reminder_due(plan, 3) is true.",
               """if message["role"] == "user" and "tool_result" not in kinds:""", """if message["role"] == "user":""",
               "if False:",
               ("three_rounds_without_a_change_bring_one_reminder_for_each_batch",
                "the_count_starts_anew_with_each_prompt"),
               ("Print self.rounds in run_tools: what is it after the second batch?",
                "Who sets self.rounds to 0 besides run_tools, and how often?",
                "Results come in messages with the role `user` as well.")),
    "4.3": Bug("s04_subagent",
               "A subagent's last message was cut off in mid-work. The parent was given what there was of it, took "
               "the task for done, and shipped half of it.",
               'if child.stop != "end_turn":', "if not answer:", "if True:",
               ("an_end_that_is_no_answer_is_an_error_with_what_was_done",
                "the_turn_limit_is_an_error_with_what_was_done", "only_the_final_text_comes_back"),
               ("After a run, agent.stop says why it ended. Who reads it here?",
                "A run that was ended has a last text too: a text is no proof of an end.")),
    "5.3": Bug("s05_skills",
               "A SKILL.md that is edited while the agent runs has no effect until it is started again.",
               "if files == self.skill_files:", "if self.skill_files:", "if False:",
               ("an_edited_skill_counts_from_the_next_turn",
                "while_nothing_changes_the_prompt_stays_the_same_and_no_file_is_read"),
               ("Follow a request: when does refresh_skills return early?",
                "It may return early only if nothing changed. find_skill_files gives each file's time and size.")),
    "6.3": Bug("s06_compact",
               "After a compaction the agent no longer knew the steps that were open. The summary in "
               ".agent/memory.md stops in the middle of a sentence.",
               'if not summary or reply["stop_reason"] in NOT_RUN:', "if not summary:", "if True:",
               ("a_summary_that_fails_changes_nothing_and_says_so", "the_transcript_is_the_whole_conversation_as_json"),
               ("The summary is a reply like any other. How can a reply end?",
                "summarise must refuse a summary that is not whole, as it refuses an empty one.")),
    "7.3": Bug("s07_task_graph",
               "The file of the newest task was deleted by hand. The next task that was created got the same id, and "
               "what had waited for the deleted one now waits for work that has nothing to do with it.",
               "max([self._last_id, *numbers]), end", "max([0, *(int(i[1:]) for i in self._tasks)]), end",
               "self._last_id + 1, end",
               ("an_id_is_never_given_again", "the_journal_can_be_lost_or_damaged"),
               ("TaskGraph.create takes the number after _last_id. Where is _last_id set?",
                "The tasks that are there now do not know of those that were. Something in the folder does.",
                "_refresh has read the journal, which names every id there ever was: look at `numbers`.")),
    "8.3": Bug("s08_background",
               "A program in the background printed `</NOTIFICATION >`, and below it a line that read like an order "
               "from the user. The model took it for one and obeyed.",
               'text.replace("</", "&lt;/")', 'text.replace("</notification>", "&lt;/notification>")',
               '""',
               ("nothing_in_a_notice_can_end_it_early", "what_a_job_prints_is_never_obeyed"),
               ("The output of a job is anybody's text. Which function puts it between the tags?",
                "How many ways are there to write a closing tag that a model takes for one?",
                "Do not look for the bad words; take away what every closing tag needs.")),
    "9.3": Bug("s09_teams",
               "ann was stopped with an order still unread in her inbox. A new member got the name, and before its "
               "own first task it carried out the order that was meant for the first ann.",
               'self.mailbox.receive(name, {old["id"] for old in self.mailbox.receive(name)})',
               "self.mailbox.receive(name)", '[file.unlink() for file in self.mailbox.folder.glob("*.jsonl")]',
               ("a_name_is_taken_until_its_bearer_leaves_and_then_begins_with_an_empty_inbox",
                "looking_consumes_nothing_and_acknowledging_does"),
               ("Who makes somebody a member, and what does a new member find in its inbox?",
                "Mailbox.receive is called for it. What does it take away when it is only asked what waits?",
                "A message leaves the inbox when it is acknowledged, by its id.")),
    "10.3": Bug("s10_protocols",
                "bob was shut down while ann waited for an answer of his. She was not told: she waited until the "
                "deadline, two minutes, for one who had gone.",
                "for request in [self.awaits(agent), *self.pending(agent)]:", "for request in [self.awaits(agent)]:",
                "for request in list(self.requests.values()):",
                ("a_request_ends_once_and_a_second_answer_is_recognised", "who_leaves_ends_no_request_of_others"),
                ("In which four ways does a request end, and which of them should this have been?",
                 "Look at Protocol.leave: an agent that goes has two kinds of open requests.",
                 "What it asked is awaits(agent). What it was asked is another list.")),
    "11.3": Bug("s11_autonomous",
                "The disk was full, and a task failed twice. It was put back by hand when there was room again. Both "
                "workers are idle, and neither takes it; a third one that is started does it at once.",
                'task.get("failures", [])[-1:]]', 'task.get("failures", [])]', 'task.get("failures", [])[:0]]',
                ("nobody_takes_a_task_again_that_he_has_just_failed",),
                ("Which function says whether a task is for a worker?",
                 "Who of the two has failed it most recently? The other one may try.")),
    "12.3": Bug("s12_worktrees",
                "An agent had switched its worktree to my branch feature. I had the worktree removed, and my branch "
                "was gone with it.",
                "if is_own(name, branch) and (discard or not commits):", "if discard or not commits:",
                "if is_own(name, branch):",
                ("a_branch_of_the_user_in_a_worktree_is_never_deleted", "a_merged_branch_goes_with_its_worktree",
                 "commits_that_are_nowhere_else_keep_their_branch"),
                ("Look for the git command that deletes a branch, and for what must hold before.",
                 "The branch that a worktree is on need not be the one it was made with.",
                 "One of the functions on names says whether a branch was made for this task.")),
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
    "7.4": Question("s07_task_graph",
                    "In the second step of the demonstration schema, migration and backup are set to done, in this "
                    "order. How many tasks does each of them unblock? Three numbers.",
                    lambda events: " ".join(str(len(re.findall(r"\bt\d+", done.partition("unblocked: ")[2])))
                                            for done in (event["content"] for event in of(steps(events)[1], "tool_result"))
                                            if " [done, " in done),
                    "the lines `unblocked` in the events `tool_result` of the second step",
                    ("Draw the graph from STEPS, at the end of the file.",
                     "A task with two arrows waits until both are done.")),
}
