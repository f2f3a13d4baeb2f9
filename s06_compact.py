"""s06 · compaction: what the model sees is chosen, so that a conversation can outgrow its window

Pain    Every result stays in the conversation for ever. Old file contents are paid for again in
        each turn, and one day the API answers "prompt is too long" and the work is stuck:
        `python s06_compact.py --demo` begins with that.
Idea    Forget in three steps, the cheapest first:

            before each call
              micro    old results become one line each: [Previous: used read a.py, ...]
                       in steps of 8,000 tokens, since each change of the past costs the cache
              auto     context over 92 % of the window: the older part is summarised by the
                       model, the recent part stays word for word
              asked    the tool `compact`, or /compact [focus]

            history   p1 a r a r p2 a r a r a r          p prompt, a reply, r results
                      └── summarised ──┘└─ kept ─┘       cut only where no call leaves its result
            new       [summary + latest prompt]  a r a r

        Before a summary the conversation goes to .agent/transcripts as it is then (a result that
        is one line by now is one line there too); the summary goes to .agent/memory.md as well,
        with which the next run begins. CLAUDE.md and AGENTS.md of the workspace are in the system
        prompt, which compaction never touches.
Change  `request` (the conversation is shortened before it is sent), `ask_model` (notes the
        tokens the API reports, and compacts once if it says too long), `add` (memory first).
Cost    A summary is one more call, loses detail, and the next request is cached from nothing.
Try     python s06_compact.py --context-window 20000, then read some large files; /context, /memory
Look for the meter before and after a line "compacted", and what the model still knows.
Builds on s01_agent_loop.py, s02_tool_use.py (for the demonstration)
"""

import json
from datetime import datetime, timezone

import core
from console import main, one_line
from s01_agent_loop import NOT_RUN, Agent
from s02_tool_use import make_agent as before

FULL = 0.92  # share of the window; what is left must hold the next reply
TAIL = 0.25  # share of the window that stays word for word
KEPT_BATCHES = 3  # newest tool batches whose results micro-compaction leaves alone
FREED_AT_ONCE = 8_000  # tokens; less is not worth a broken cache prefix
WORTH = 400  # characters; a shorter result is cheaper than its placeholder and the broken cache
DUMPED = 2_000  # characters of one result that the summariser gets to see
# characters of CLAUDE.md and AGENTS.md together; of each of them, or of the memory, however large the file is
INSTRUCTIONS, READ_AT_MOST = 12_000, 1_000_000
KEEP_RESULTS_OF = ("todo_", "task_", "load_skill", "list_skills", "compact")  # state, not data
NO_USE = "compacting does not help any more: /clear starts afresh, transcripts are in .agent/transcripts"
ASK = """Summarise the conversation below for yourself: you will go on with the work and see only the summary.
Keep decisions and their reasons, what was changed, file paths, the state of things, what failed, and the steps
still open. Quote the user's own instructions and constraints word for word; say of each request whether it is done.
{focus}<conversation>
{conversation}
</conversation>"""
LATEST = "The latest request, word for word; go on with it unless the summary says it is done:\n<request>\n"
SUMMARY = ("The conversation so far was summarised. As it was then it is in {path}, should a detail be missing."
           "\n\n{summary}\n\n" + LATEST + "{request}\n</request>")
GO_ON = {"role": "assistant", "content": [{"type": "text", "text": "I have read this and go on from here."}]}


def characters(block: dict) -> int:
    """Characters of a result; of content blocks, an image among them, what their tokens come to."""
    return len(c) if isinstance(c := block.get("content", ""), str) else core.estimate_tokens(c) * 4


def micro(messages: list[dict]) -> int:
    """Replaces old results by one line each, in place; returns the tokens freed, 0 if not worth it.

    The newest batches stay, so what the model has not seen is never touched. Running it again
    changes nothing: a placeholder is too short to be replaced.
    """
    # exercise 6.1: decide which results may go: old, larger than WORTH, not of a tool in KEEP_RESULTS_OF. All
    # of them or none: below FREED_AT_ONCE tokens, at 4 characters each, nothing changes. In the place of each
    # stays: [Previous: used read a.py, 12000 characters; call it again if needed]
    # hint: the last KEPT_BATCHES messages with results stay, whatever their size
    # hint: core.results_in(messages) gives (blocks, index, block): put {**block, "content": line} at
    # blocks[index]
    # hint: a result knows only the id of its call: look among the tool_use blocks before it
    batches = [message for message in messages if core.has_results(message)][:-KEPT_BATCHES]
    old = [result for result in core.results_in(batches) if characters(result[2]) > WORTH]
    if sum(characters(block) for _, _, block in old) < FREED_AT_ONCE * 4:
        return 0
    calls = {block["id"]: block for message in messages if message["role"] == "assistant"
             for block in core.as_blocks(message["content"]) if block["type"] == "tool_use"}
    old = [(content, index, block, calls[block["tool_use_id"]]) for content, index, block in old
           if not calls[block["tool_use_id"]]["name"].startswith(KEEP_RESULTS_OF)]
    freed = sum(characters(block) for _, _, block, _ in old) // 4
    if freed < FREED_AT_ONCE:
        return 0
    for content, index, block, call in old:
        what = " ".join([call["name"], *map(str, call["input"].values())])[:100]
        line = f"[Previous: used {what}, {characters(block)} characters; call it again if needed]"
        content[index] = {**block, "content": line}
    return freed


def plan_cut(messages: list[dict], room: int) -> int:
    """Index of the first message to keep word for word: about `room` tokens, never less than one step.

    A kept part may begin with a prompt or a reply, never with results: their calls would be gone.
    """
    # exercise 6.2: find where the tail may begin; 0 means that all of it fits and nothing is to be cut.
    # hint: walk from the end, adding core.estimate_tokens(message), until room runs out
    # hint: remember the last index at which a tail may begin: where core.has_results(message) is false
    cut, tokens = None, 0
    for index in range(len(messages) - 1, -1, -1):
        tokens += core.estimate_tokens(messages[index])
        if cut is not None and tokens > room:
            break
        if not core.has_results(messages[index]):
            cut = index
    return cut or 0


def latest_request(messages: list[dict]) -> str:
    """The user's newest prompt, also if it stands in an earlier summary by now."""
    prompts = (m["content"] for m in reversed(messages) if m["role"] == "user" and not core.has_results(m))
    text = core.text_of(next(prompts, ""))
    return text.rpartition(LATEST)[2].removesuffix("\n</request>") if LATEST in text else text


def dump(messages: list[dict]) -> list[str]:
    """The messages as lines of JSON for the summariser: long results clipped, no images, no thinking."""
    lines = []
    for message in messages:
        blocks = [{**block, "content": core.clip(str(block.get("content", "")), DUMPED)}
                  if block["type"] == "tool_result" else block for block in core.as_blocks(message["content"])
                  if block["type"] in ("text", "tool_use", "tool_result")]
        lines.append(json.dumps({"role": message["role"], "content": blocks}, ensure_ascii=False))
    return lines


def in_chunks(lines: list[str], room: int) -> list[list[str]]:
    """The lines in groups of at most `room` characters; a longer line is cut."""
    chunks, left = [[]], room
    for line in (core.clip(line, room) for line in lines):
        if len(line) > left:
            chunks, left = [*chunks, []], room
        chunks[-1].append(line)
        left -= len(line)
    return chunks


def clip_largest(messages: list[dict], tokens: int) -> int:
    """Cuts the largest result by about `tokens`, in place and with a mark; returns the tokens freed."""
    found = core.results_in(messages)
    content, index, block = max(found, key=lambda result: characters(result[2]), default=([], 0, {}))
    if (before := characters(block)) <= WORTH:
        return 0
    text = given if isinstance(given := block["content"], str) else f"{core.text_of(given)}\n[media left out]"
    content[index] = {**block, "content": core.clip(text, max(WORTH, before - tokens * 4))}
    return max(0, before - characters(content[index])) // 4


class Compacting(Agent):
    """An agent whose conversation may outgrow its window. `context_window` is in tokens, 0: the model's."""

    def __init__(self, workspace: core.Workspace, context_window: int = 0, **options):
        super().__init__(workspace, **{"tools": core.extended_tools(workspace), **options})
        self.context_window = context_window
        self.folder, self.wanted = workspace.root / ".agent", None
        self.tokens, self.counted, self.stuck = 0, 0, 0  # stuck: compactions in a row that did not help

        def compact(focus: str = "") -> str:
            """Shorten this conversation: older parts are replaced by a summary before the next step.

            Use it when a part of the work is done and its details are no longer needed. focus says
            what the summary must keep.
            """
            self.wanted = focus
            return "The conversation will be compacted before the next step."

        self.tools = self.tools | core.registry(core.Tool.of(compact, read_only=True))
        self.system += self.instructions()
        self.memory = self.remembered()

    # the steps ----------------------------------------------------------------

    def request(self, messages: list[dict]) -> dict:
        """What may be forgotten is forgotten before the conversation is sent."""
        self.tokens -= micro(messages)
        if self.wanted is not None or self.size(messages) > FULL * self.window:
            focus, self.wanted = self.wanted or "", None
            self.compact(messages, focus)
        return super().request(messages)

    def ask_model(self, messages: list[dict]) -> dict:
        """Notes what the API counted; a prompt that it finds too long is compacted once and sent again."""
        try:
            reply = super().ask_model(messages)
        except core.ModelError as error:
            if not error.too_long or not self.compact(messages):
                raise
            reply = super().ask_model(messages)
        read, written = core.prompt_tokens(reply["usage"]), reply["usage"].get("output_tokens") or 0
        self.tokens = read and read + written  # some back ends count only what they wrote: that says nothing
        self.counted = len(messages) + 1  # the reply is added next
        return reply

    def add(self, messages: list[dict], message: dict) -> None:
        """A conversation that begins anew begins with what is remembered of the last one, once."""
        if not messages and self.memory:
            super().add(messages, {"role": "user", "content": self.memory})
            super().add(messages, GO_ON)
            self.memory = ""
        super().add(messages, message)

    # compaction -----------------------------------------------------------------

    def size(self, messages: list[dict]) -> int:
        """Tokens of the next request: as the API counted them, plus an estimate of what came since."""
        if self.tokens > 0 and 0 < self.counted <= len(messages):
            return self.tokens + core.estimate_tokens(messages[self.counted:])
        request = super().request(messages)
        return sum(core.estimate_tokens(request[part]) for part in ("system", "tools", "messages"))

    def compact(self, messages: list[dict], focus: str = "") -> bool:
        """Replaces the older part by a summary, in place; False and unchanged when that fails.

        Raises core.ModelError when the conversation is over the limit and cannot be made to fit.
        """
        before, limit, why = self.size(messages), int(FULL * self.window), NO_USE
        after, share = before, min(1.0, core.estimate_tokens(messages) / max(1, before))  # Chinese has more tokens
        try:
            if cut := plan_cut(messages, max(200, int(TAIL * min(self.window, before) * share))):
                self.install(messages, cut, self.summarise(messages[:cut], focus, int(self.window * 2 * share)))
            after = self.size(messages)
            while after > limit and (freed := clip_largest(messages, after - limit)):
                self.tokens, after = 0, after - freed
        except (core.ModelError, OSError) as error:
            core.emit("notice", agent=self.name, text=(why := f"not compacted, nothing was changed: {core.reason(error)}"))
        self.stuck = 0 if after <= limit else self.stuck + 1
        if self.stuck > 1:
            raise core.ModelError(f"the conversation needs about {after:,} tokens, {limit:,} are free; {why}")
        if after < before:
            core.emit("compaction", agent=self.name, text=f"compacted: about {before:,} tokens before, {after:,} now")
        return after < before

    def summarise(self, messages: list[dict], focus: str, room: int) -> str:
        """The model's summary, chunk by chunk where the old part is too large for one request."""
        summary, about = "", f"Keep above all: {focus}\n" if focus else ""
        for chunk in in_chunks(dump(messages), room):  # at most half a window
            so_far = dump([{"role": "user", "content": summary}]) if summary else []
            ask = [{"role": "user", "content": ASK.format(focus=about, conversation="\n".join(so_far + chunk))}]
            reply = core.call_model(lambda: core.client().messages.create(
                model=self.model, max_tokens=min(8_000, self.window // 8), messages=ask), self.name)
            core.emit("reply", agent=f"{self.name}/compaction", model=self.model, **reply)
            summary = core.text_of(reply["content"]).strip()
            if not summary or reply["stop_reason"] in NOT_RUN:
                raise core.ModelError(f"the summary is not whole ({reply['stop_reason'] if summary else 'no text'})")
        return summary

    def install(self, messages: list[dict], cut: int, summary: str) -> None:
        """Transcript and memory first, then the new history: a crash between them loses nothing."""
        now = datetime.now(timezone.utc)
        transcript = self.folder / "transcripts" / f"{now:%Y%m%d-%H%M%S-%f}.jsonl"
        core.atomic_write(transcript, "".join(json.dumps(message) + "\n" for message in messages).encode())
        core.atomic_write(self.folder / "memory.md", bytes(f"{now:%Y-%m-%d %H:%M} UTC\n\n{summary}\n", "utf-8", "replace"))
        text = SUMMARY.format(path=self.workspace.name(transcript), summary=summary,
                              request=core.clip(latest_request(messages), self.window))
        messages[:cut] = [{"role": "user", "content": text}, *[GO_ON] * (messages[cut]["role"] == "user")]
        self.tokens = 0

    # memory ---------------------------------------------------------------------

    def remembered(self) -> str:
        """The memory file as the first message of a new run; empty when there is none."""
        if text := text_in(self.workspace, ".agent/memory.md").strip():
            when = one_line(text.splitlines()[0], 40)
            core.emit("notice", agent=self.name, text=f"memory of {when} loaded; /memory shows it")
        return text and f"What you remember of earlier runs here:\n\n{core.clip(text, self.window)}"

    def instructions(self) -> str:
        """CLAUDE.md and AGENTS.md of the workspace, each text once, with a mark where they are cut."""
        names = {text: name for name in ("CLAUDE.md", "AGENTS.md") if (text := text_in(self.workspace, name))}
        return core.clip("".join(f"\n\nThe project's {n}:\n{text}" for text, n in names.items()), INSTRUCTIONS)


def text_in(workspace: core.Workspace, name: str) -> str:
    """A text file of the workspace, as far as READ_AT_MOST; "" when it is absent or a link that leads outside."""
    try:
        with open(workspace.file(name, "memory"), encoding="utf-8", errors="replace") as file:
            return file.read(READ_AT_MOST)
    except (core.ToolError, OSError):
        return ""


def show_compact(agent: Compacting, messages: list[dict], focus: str) -> str | None:
    """summarise the older part of the conversation now; /compact FOCUS says what to keep"""
    return None if agent.compact(messages, focus) else "the conversation is no shorter"


def show_memory(agent: Compacting, messages: list[dict], argument: str) -> str:
    """what the next run will remember; /memory clear removes it"""
    if argument == "clear":
        (agent.folder / "memory.md").unlink(missing_ok=True)
        agent.memory = ""
    return text_in(agent.workspace, ".agent/memory.md") or "nothing is remembered"


LOGS = {f"log{n}.txt": "".join(f"{n}.{k:04} request served in {k * n % 97} ms\n" for k in range(780))
        for n in range(8)}
PROMPT = "Read the eight logs, one after the other, and say when you are done."
SCRIPT = " ;; ".join(f"read {name}" for name in LOGS) + " ;; say All eight are read."
DEMO = [
    {"note": "The agent of s02, on a model with a window of 48,000 tokens: every result stays, until it is full.",
     "files": LOGS, "make": before, "model": "stand-in-48k", "fails": True, "prompt": PROMPT, "script": SCRIPT},
    {"note": "With micro-compaction old results become one line each. What follows such a line is not in the cache.",
     "model": "stand-in-48k", "prompt": PROMPT, "script": SCRIPT,
     "after": lambda agent, messages: f"{agent.size(messages):,} tokens at the end, of {agent.window:,}."},
    {"note": "32,000 tokens are too few even for the newest results: now the older part becomes a summary.",
     "model": "stand-in-32k", "prompt": PROMPT, "script": SCRIPT,
     "after": lambda agent, messages: f"{len(messages)} messages are left, {agent.size(messages):,} tokens."},
    {"note": "A new run in the same folder begins with what was remembered.",
     "prompt": "What do you remember?", "script": "bash head -c 300 .agent/memory.md ;; say All of that."},
]

if __name__ == "__main__":
    main(Compacting, session="s06", title="compaction", demo=DEMO,
         commands={"compact": show_compact, "memory": show_memory},
         options={"--context-window": {"type": int, "default": 0, "metavar": "N", "help": "tokens; 0: the model's"}})
