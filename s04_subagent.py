"""s04 · subagent: a subtask gets a conversation of its own, and only its conclusion comes back

Pain    Every file the agent reads stays in its conversation, and each later turn sends all of it
        again, though only one sentence of it was wanted: `python s04_subagent.py --demo` shows
        the figure. A full window ends the work; long before that, the model attends less well.
Idea    A tool whose work is done by another agent: the same loop with an empty conversation, in
        the same workspace, under the same permissions. What it reads and tries stays with it.

            parent's messages                        subagent's messages (gone afterwards)
            ─────────────────                        ─────────────────────────────────────
            spawn_subagent {prompt}  ─────────────►  prompt
                                                     read a.py ─► 900 lines
                                                     grep save ─► 40 matches
            "store.py writes, line 12"  ◄──────────  "store.py writes, line 12"

        An answer is not the only way to end. A turn limit, a refusal, a cut or an empty answer,
        an API that is down, Ctrl-C: then the result says so, is_error, with what was done until
        then. A half-done task that looks done costs more than one that failed.
Change  No step of Agent: one tool, which makes an Agent. It has the base tools and not this one,
        so there is no tree of subagents: to break a task up further is the parent's decision.
Cost    The subagent pays for its own system prompt, tools and turns, and starts without knowing
        what the parent knows. Its tokens count in the meter like the parent's. Its prompt must
        say everything; what its answer leaves out is lost.
Try     spawn_subagent {"prompt": "glob *.py ;; read core.py ;; say core.py is the foundation."}
        Then /context: the file is not in it.
Look for the indented calls, and the line that says how much stayed outside.
Builds on s01_agent_loop.py, s02_tool_use.py (for the demonstration)
"""

import itertools

import core
import s02_tool_use
from console import main, one_line, short
from s01_agent_loop import NO_TEXT, Agent

TURNS = 30  # model calls of one subagent: enough to explore, and an end in sight for whoever waits
SYSTEM = """You are a subagent: another agent has given you one task, in a conversation of your own.
Your workspace is the folder {root}. Act through your tools. When a call fails, read why and try a
corrected one. Do this task and nothing else; nobody can answer questions.
Only your last message goes back. Put everything that was asked for into it: the answer first, then
the files and lines that show it, and plainly what you could not do or did not check."""
UNFINISHED = {  # why a run stopped, in words for the parent
    "max_turns": f"it reached its limit of {TURNS} turns",
    "repeated": "it made the same call with the same result again and again",
    "refusal": "the model refused to answer",
    "max_tokens": "its answer was cut off at the limit of one reply",
    "model_context_window_exceeded": "its context window is full",
    "empty": "it ended without a word",
}
CHANGING = ("write", "edit", "revert")  # the tools by which a subagent changes files, besides bash


# what a conversation came to -----------------------------------------------------------


def calls_made(messages: list[dict]) -> list[tuple[dict, bool]]:
    """Every tool call of a conversation in order, and whether it succeeded."""
    # exercise 4.1: pair each call with its result. A call without one (it was interrupted) did not succeed.
    # hint: core.as_blocks(message["content"]) gives the blocks, also where the content is a string
    # hint: collect the results by tool_use_id first; is_error is often absent, which means it went well
    blocks = [block for message in messages for block in core.as_blocks(message["content"])]
    results = {block["tool_use_id"]: block for block in blocks if block["type"] == "tool_result"}
    return [(block, not results.get(block["id"], {"is_error": True}).get("is_error"))
            for block in blocks if block["type"] == "tool_use"]


def changed_files(messages: list[dict]) -> list[str]:
    """The files that were changed in a conversation by write, edit and revert, each once."""
    return list(dict.fromkeys(call["input"]["path"] for call, succeeded in calls_made(messages)
                              if succeeded and call["name"] in CHANGING))


def last_words(messages: list[dict]) -> str:
    """The newest text of the model in a conversation, or nothing."""
    texts = [core.text_of(message["content"]) for message in messages if message["role"] == "assistant"]
    return next((text for text in reversed(texts) if text not in ("", NO_TEXT["text"])), "")


def tally(messages: list[dict]) -> str:
    """How many calls a conversation made, in words."""
    number = len(calls_made(messages))
    return f"{number} call{'s' * (number != 1)}"


def report(why: str, messages: list[dict]) -> str:
    """What the parent must know of a subagent that did not finish: why, and what it had done."""
    files, words = ", ".join(changed_files(messages)) or "none", last_words(messages)
    return "\n".join([
        f"The subagent did NOT finish: {why}.",
        f"It had made {tally(messages)}. Files changed by {', '.join(CHANGING)}: {files}.",
        f"Its last words: {words}" if words else "It had said nothing.",
        "Look at what is there before you go on."])


# the acting half ---------------------------------------------------------------------------


class Subagent(Agent):
    """An agent for one task of a parent: its own conversation, the parent's workspace and rights."""

    system = SYSTEM

    def __init__(self, parent: Agent, name: str):
        super().__init__(parent.workspace, parent.permissions, core.extended_tools(parent.workspace),
                         parent.model, TURNS, f"{parent.name}/{name}")
        self.messages: list[dict] = []
        self.prompts: list[int] = []  # tokens of each prompt that was sent

    def ask_model(self, messages: list[dict]) -> dict:
        """One API call, whose size is kept."""
        reply = super().ask_model(messages)
        self.prompts.append(core.prompt_tokens(reply["usage"]))
        return reply

    def outside(self) -> int:
        """Tokens that its calls and results added to its conversation, and not to the parent's."""
        return self.prompts[-1] - self.prompts[0] if self.prompts else 0


class Spawning(Agent):
    """An agent that can hand a subtask to a subagent; `outside` sums the tokens this kept out."""

    def __init__(self, workspace: core.Workspace, **options):
        super().__init__(workspace, **{"tools": core.extended_tools(workspace), **options})
        self.tools = self.tools | core.registry(core.Tool.of(self.spawn_subagent))
        # what a subagent does is asked for call by call, under the same rules: no need to ask twice
        self.permissions.allow += {"spawn_subagent"} - {*self.permissions.allow}
        self.numbers, self.outside = itertools.count(1), 0

    def spawn_subagent(self, prompt: str, description: str = "") -> str:
        """Give a task to a subagent, which works on it alone and returns only its final message.

        Use it when a task needs much reading or trying of which you want only the conclusion:
        exploring code, finding something in many files, a self-contained change. It has the
        same workspace and tools as you, except this one, but knows nothing of this conversation:
        the prompt must name the files, the facts and the form of the answer. For one or two
        calls do it yourself. description: a few words for the user.
        """
        # exercise 4.2: run a Subagent on the prompt and return its answer. Any end but end_turn, and an API
        # that fails, is a core.ToolError with report(why, child.messages). An empty prompt: "the prompt is
        # empty".
        # hint: Subagent(self, f"sub-{next(self.numbers)}"); child.add(child.messages, {...});
        # child.run(child.messages)
        # hint: UNFINISHED has the words for each child.stop; the API's failure is core.ModelError
        # hint: self.account(child, description) in a finally: also what failed has cost tokens
        if not prompt.strip():
            raise core.ToolError("spawn_subagent: the prompt is empty; say what is to be done")
        child = Subagent(self, f"sub-{next(self.numbers)}")
        child.add(child.messages, {"role": "user", "content": prompt})
        core.emit("user", agent=child.name, text=prompt)
        try:
            answer = child.run(child.messages)
        except core.ModelError as error:
            raise core.ToolError(report(f"the model could not be asked: {error}", child.messages)) from error
        except KeyboardInterrupt as stop:  # it stops the parent too, whose history says what was done
            raise core.Interrupted(report("the user interrupted it", child.messages)) from stop
        finally:
            self.account(child, description)
        if child.stop != "end_turn":
            raise core.ToolError(report(UNFINISHED[child.stop], child.messages))
        return answer

    def account(self, child: Subagent, description: str) -> None:
        """Says what a subagent kept out of this conversation."""
        self.outside += child.outside()
        about = f" ({one_line(description, 60)})" if description.strip() else ""
        size = f"{short(child.outside())} tokens stayed outside"
        core.emit("notice", agent=self.name, text=f"{child.name}{about}: {tally(child.messages)}, {size}")


PARTS = ("orders", "prices", "mails", "stock", "users")
CODE = {f"{part}.py": "".join(f"def {part}_{n}(value):\n    return value * {n}\n\n\n" for n in range(90))
        for part in PARTS}
CODE["stock.py"] += "def save(value):\n    open('stock.txt', 'w').write(str(value))\n"
EXPLORE = "Which of these modules writes to the disk, and where? Read them all."
READ_ALL = " ;; ".join(["glob *.py", *(f"read {name}" for name in CODE)])
FOUND = "Only stock.py writes: save, at its end, to stock.txt."


def context_sizes(agent: Agent, messages: list[dict]) -> str:
    """The two figures of the demonstration, side by side."""
    outside = short(agent.outside) if isinstance(agent, Spawning) else "0"
    inside = short(core.estimate_tokens(messages))
    return f"tokens that stay in this conversation: {inside}   that stayed outside: {outside}"


DEMO = [
    {"note": "The agent of s02 reads five files to find one line, and sends them again with every later turn.",
     "files": CODE,
     "make": s02_tool_use.make_agent,
     "prompt": EXPLORE,
     "script": f"{READ_ALL} ;; say {FOUND}",
     "after": context_sizes},
    {"note": "The same exploration in a subagent: its calls are indented. One sentence comes back.",
     "prompt": f"Let a subagent find out: {EXPLORE}",
     "script": f'spawn_subagent {{"prompt": "{READ_ALL} ;; say {FOUND}", "description": "who writes"}} ;; '
               f"say {FOUND}",
     "after": context_sizes},
    {"note": "A subagent that gets nowhere is ended. The parent is told so, and what there is already.",
     "prompt": "Let a subagent write a note and then wait for the file done.txt.",
     "script": 'spawn_subagent {"prompt": "say I begin with the note. ++ write note.txt :: Waiting. ;; '
               + " ;; ".join(["bash ls done.txt"] * 5) + '"} ;; say It gave up waiting; note.txt is written.'},
]

if __name__ == "__main__":
    main(Spawning, session="s04", title="subagents", demo=DEMO)
