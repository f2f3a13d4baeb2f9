"""s01 · the agent loop: ask the model, run the tools it asks for, show it the results, repeat

Pain    A model alone can only talk: it says which command it would run and never sees what
        comes of it. `python s01_agent_loop.py --demo` shows that first, with a single turn.
Idea    A loop around the model. As long as a reply asks for tools, run them, append the results
        to the conversation, and ask again. The bare loop:

            def run(messages):
                while True:
                    reply = client.messages.create(
                        model=MODEL, max_tokens=16_000, tools=[BASH], messages=messages)
                    messages.append({"role": "assistant", "content": reply.content})
                    calls = [block for block in reply.content if block.type == "tool_use"]
                    if not calls:
                        return reply.content[-1].text
                    messages.append({"role": "user", "content": [
                        {"type": "tool_result", "tool_use_id": call.id,
                         "content": subprocess.getoutput(call.input["command"])} for call in calls]})

                prompt ──► model ──► tool calls? ── no ──► answer
                             ▲            │ yes
                             └── results ◄┘

Change  The class below gives each of those lines a name, so that a later session can override
        one step and call `super()`: request, ask_model, add, run_tools, run_tool. And it keeps
        one promise that the bare loop does not: however a run ends (answer, error, Ctrl-C at
        any instant, a limit), `messages` can be sent as the next request.
Cost    Each turn sends the whole conversation again; prompt caching makes the repeated part
        cheap, s06 makes it shorter. The model's commands run with your rights: that is what the
        permission question is for.
Try     bash ls *.nope ;; bash ls *.py ;; say Found them.
        Then press Ctrl-C during: bash sleep 30
Look for the failing command: its exit code goes back to the model like any other result.
Builds on core.py
"""

import core
from console import main

SYSTEM = """You are a coding agent. Your workspace is the folder {root}.
Act through your tools instead of describing what you would do; look before you change things.
When a call fails, read why and try a corrected one. When you are done, say briefly what you did."""
MAX_TOKENS = 16_000  # of one reply, at most half the window; the SDK demands streaming for much more
REPEATS = 5  # identical calls with identical results in a row, after which the loop gives up
NOT_RUN = {  # stop reasons of a reply that is not whole, and what its calls are told
    "max_tokens": "not run: the reply was cut off by max_tokens, so this call may be incomplete; send less at once",
    "model_context_window_exceeded": "not run: the reply was cut off because the context window is full",
    "refusal": "not run: the reply was refused",
}
NO_TEXT = {"type": "text", "text": "(no text)"}  # goes into a reply that is empty: the API would refuse it


def why_over(reply: dict, done: list[list]) -> str:
    """Why a run is over after this reply, or "" when the loop goes on.

    `done` holds each batch so far as (tool, input, result) of its calls. Asking for tools decides
    before the stop reason does, and a paused turn is sent back as it is (the API's rule).
    """
    reason, asks = reply["stop_reason"], any(block["type"] == "tool_use" for block in reply["content"])
    if asks and reason != "refusal":
        return "repeated" if done[-REPEATS:] == [done[-1]] * REPEATS else ""
    if reason == "pause_turn":
        return ""
    whole = "end_turn" if core.text_of(reply["content"]) else "empty"
    return reason if reason in NOT_RUN else whole


class Agent:
    """A model with tools in a workspace. `run` is the loop; every other step may be overridden.

    `messages` belongs to the caller and grows only through `add`. When a run has returned, `stop`
    says why: end_turn, or max_tokens, refusal, model_context_window_exceeded (the answer is not
    whole), empty, max_turns or repeated.
    """

    system = SYSTEM
    context_window = 0  # tokens; 0 stands for the model's own

    def __init__(self, workspace: core.Workspace, permissions: core.Permissions | None = None,
                 tools: dict[str, core.Tool] | None = None, model: str = "", max_turns: int = 300,
                 name: str = "main"):
        self.workspace, self.name, self.max_turns = workspace, name, max_turns
        self.permissions = permissions or core.Permissions()
        self.tools = core.basic_tools(workspace) if tools is None else tools
        self.model = model or core.settings().model
        self.stop = ""

    @property
    def window(self) -> int:
        """The context window in tokens."""
        return self.context_window or core.model_info(self.model).window

    def run(self, messages: list[dict]) -> str:
        """Works until the model asks for no more tools; returns its last text, which may be empty.

        Raises core.ModelError when the model cannot be asked, and KeyboardInterrupt; `messages`
        is valid after both, and running again goes on from there.
        """
        # exercise 1.1: the loop: ask, add the reply, run its calls, close the batch, until a reply asks for
        # none. self.stop says why it ended (end_turn, max_turns), and listeners hear it last:
        # core.emit("stop", agent=self.name, reason=self.stop, text=text)
        # hint: calls are the blocks of reply["content"] with type tool_use; run_tools fills a dict of answers
        # hint: self.close(messages, calls, answers, "not run") appends the results, if there were calls
        self.stop, text, done = "", "", []
        while not self.stop:
            reply = self.ask_model(messages)
            text = core.text_of(reply["content"])
            calls = [block for block in reply["content"] if block["type"] == "tool_use"]
            not_run, answers = NOT_RUN.get(reply["stop_reason"]), {}
            batch = messages, calls, answers, not_run or "not run: the turn ended before this call"
            try:
                try:
                    silent = all("thinking" in block["type"] for block in reply["content"])
                    self.add(messages, {"role": "assistant", "content": reply["content"] + [NO_TEXT] * silent})
                    if calls and not not_run:
                        self.run_tools(calls, answers)
                finally:  # whatever happened, the API wants every call answered before anything else
                    self.close(*batch)
            finally:  # Ctrl-C may have struck inside that; closing twice does nothing
                self.close(*batch)
            done.append([(call["name"], call["input"], answers.get(call["id"], {}).get("content"))
                         for call in calls])
            self.stop = why_over(reply, done) or ("max_turns" if len(done) >= self.max_turns else "")
        core.emit("stop", agent=self.name, reason=self.stop, text=text)
        return text

    def request(self, messages: list[dict]) -> dict:
        """What the model sees this turn, as the keyword arguments of one API call."""
        return {"model": self.model, "max_tokens": min(MAX_TOKENS, self.window // 2),
                "system": self.system.replace("{root}", str(self.workspace.root)),
                "tools": [tool.definition() for tool in self.tools.values()],
                "messages": core.merge_roles(messages), **core.settings().caching}

    def ask_model(self, messages: list[dict]) -> dict:
        """One API call. Returns the reply as {content, stop_reason, usage}, all plain dicts."""
        request = self.request(messages)
        core.emit("request", agent=self.name, model=request["model"], messages=len(messages))
        reply = core.call_model(lambda: core.client().messages.create(**request), self.name)
        if reply["usage"].get("output_tokens") == request["max_tokens"] and reply["stop_reason"] not in NOT_RUN:
            reply["stop_reason"] = "max_tokens"  # some back ends call a reply whole that was cut there
        core.emit("reply", agent=self.name, model=request["model"], window=self.window, **reply)
        return reply

    def add(self, messages: list[dict], message: dict) -> None:
        """Appends one message: the only place where a conversation grows."""
        messages.append(message)

    def run_tools(self, calls: list[dict], answers: dict[str, dict]) -> None:
        """Runs one batch of calls, in order, putting each result into `answers` under its call's id.

        A block under any other key goes to the model as well, behind the results.
        """
        for call in calls:
            self.answer(call, answers)

    def answer(self, call: dict, answers: dict[str, dict]) -> None:
        """Runs one call and keeps its result, before anything else can happen to it."""
        core.emit("tool_call", agent=self.name, **call)
        try:
            answers[call["id"]] = self.run_tool(call)
        except core.Interrupted as stop:
            answers[call["id"]] = core.tool_result(
                call, f"interrupted by the user while running; it may have had effects\n{stop}", True)
            raise
        finally:
            if result := answers.get(call["id"]):
                core.emit("tool_result", agent=self.name, name=call["name"], **result)

    def run_tool(self, call: dict) -> dict:
        """Runs one call; whatever goes wrong with it is in the result."""
        return core.dispatch(call, self.tools, self.permissions, self.name)

    def has_news(self, wait: bool = False) -> bool:
        """Whether something happened that the model should hear of; the console then runs it once more.

        Asked after a run. `wait` blocks until nothing more can come (one-shot mode). See s08, s09.
        """
        return False

    def close(self, messages: list[dict], calls: list[dict], answers: dict[str, dict], not_run: str) -> None:
        """Appends the user message that answers every call of the last reply, exactly once.

        Results first, in the order of the calls, then other blocks: the API's rule.
        """
        # exercise 1.2: answer every call, also one that never ran; a batch that is closed already stays as it
        # is.
        # hint: answers.get(call["id"]) may be missing; core.tool_result(call, not_run, True) makes an error
        # result
        # hint: a block whose key is no call's id goes behind the results
        # hint: a batch is open as long as the last message is the assistant's
        results = [answers.get(call["id"]) or core.tool_result(call, not_run, True) for call in calls]
        others = [block for key, block in answers.items() if key not in {call["id"] for call in calls}]
        if calls and messages[-1]["role"] == "assistant" and calls[-1] in messages[-1]["content"]:
            self.add(messages, {"role": "user", "content": results + others})


DEMO = [
    {"note": "One turn only: the model asks for a command, and there it ends. Nobody tells it what came of it.",
     "files": {"notes.txt": "Buy milk.\nWater the plants.\n"},
     "make": lambda workspace, **options: Agent(workspace, **options | {"max_turns": 1}),
     "prompt": "What is in note.txt?",
     "script": "bash cat note.txt ;; say I never get to say this."},
    {"note": "The same with the loop: the failure comes back as a result, and the next call corrects it.",
     "prompt": "What is in note.txt? If it is not there, look for a similar name.",
     "script": "bash cat note.txt ;; bash ls ;; bash cat notes.txt ;; say note.txt does not exist; "
               "notes.txt holds two chores: buy milk, water the plants.",
     "after": lambda agent, messages: f"{len(messages) // 2} replies instead of 1, and each turn sent all so far."},
]

if __name__ == "__main__":
    main(Agent, session="s01", title="the agent loop", demo=DEMO)
