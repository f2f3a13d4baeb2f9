"""console · the front door of every session: command line, REPL, one-shot mode, demo, rendering

`main(make_agent, session="s06", title="...", demo=DEMO, commands={...}, options={...})` is the only
entry. `make_agent(workspace, permissions=, model=, max_turns=)` builds the session's agent. A command
is a function `(agent, messages, argument)`; its docstring is its help, what it returns is shown. An
option is `"--name": {argparse keywords}`; its value goes to make_agent as the keyword `name`.
A demo is a list of steps, each a dict:

    note     one or two lines that say what to see, before the step
    prompt   the wording for a real model;  script  the same for the stand-in model
    files    name: content, written into the throw-away workspace first
    make     another make_agent for this step, model another model of the stand-in (a small window:
             stand-in-32k); a change of either starts a new conversation
    fails    True when the step is to end with an error
    after    function (agent, messages) -> a line with the figure that shows the difference

Everything shown comes from `core.emit`; this file is one listener, `--trace` is another.
The prompt appears before rich and the SDK are imported: a thread imports them meanwhile.
"""

import argparse
import contextlib
import errno
import functools
import gc
import os
import queue
import re
import shutil
import signal
import sys
import tempfile
import threading
import time
import traceback
from collections.abc import Callable, Sequence

import core
from arguments import parse_arguments
from keyboard import choice, edit_lines, more_typed, pasted, typed_ahead
from screen import Meter, Screen, clean, context_report, details, one_line, short, summary, to_json

AGAIN = 2.0  # seconds within which a second Ctrl-C at the prompt leaves
HOW_TO_PLAY = """The stand-in model does not think; it plays what you type:
  bash ls -la ;; bash ls *.nope ;; say Done.   one reply after the other
  bash ls ++ bash pwd                          two calls in one reply
  edit a.txt :: old text :: new text           fields in order, or JSON (s02)
A real model: put ANTHROPIC_API_KEY or ANTHROPIC_BASE_URL into .env."""


class Program:
    """One run of a session: its agent, its conversation, and the ways to drive them."""

    def __init__(self, arguments: argparse.Namespace, make_agent: Callable, session: str, title: str,
                 demo: Sequence[dict], commands: dict[str, Callable], options: dict[str, dict]):
        self.arguments, self.session, self.title = arguments, session, title
        own = {name: getattr(arguments, name) for name in (key.lstrip("-").replace("-", "_") for key in options)}
        self.make_agent = functools.partial(make_agent, **own) if own else make_agent
        self.demo, self.demo_failed = demo, False
        self.waiting: list[str] = []  # prompts that were typed before they could be read
        self.left_at = 0.0  # when Ctrl-C was pressed last
        self.asking = threading.Lock()  # one question at a time on a line of its own, and no prompt meanwhile
        self.asking_above = threading.Lock()  # one question at a time above the prompt
        self.question: queue.SimpleQueue | None = None  # where its answer is awaited
        self.interactive = sys.stdin.isatty() and arguments.prompt is None
        self.screen = Screen(sys.stdout if self.interactive or arguments.demo else sys.stderr)
        self.meter = Meter()
        self.commands = {"help": self.help, "tools": self.tools, "context": self.context, "cost": self.cost,
                         "model": self.model, "clear": self.clear, "demo": self.play_demo, **commands}
        core.listeners.append(self.screen.listen)
        core.listeners.append(lambda event: event["kind"] == "reply" and self.meter.on_reply(event))
        if arguments.prompt is None and not arguments.demo:
            self.banner()
        self.messages: list[dict] = []
        self.agent = self.build(core.Workspace(arguments.workdir))

    def build(self, workspace: core.Workspace, make_agent: Callable | None = None,
              mode: str = "", model: str = ""):
        """An agent for a workspace, by this run's options; what is given here goes before them."""
        permissions = core.Permissions(mode=mode or ("yes" if self.arguments.yes else "ask"),
                                       asker=self.ask if self.interactive else None)
        return (make_agent or self.make_agent)(
            workspace, permissions=permissions, model=model or self.arguments.model or core.settings().model,
            max_turns=self.arguments.max_turns)

    def banner(self) -> None:
        """The first line: which session, which model. Plain, since rich is not imported yet."""
        found = core.settings()
        model = "stand-in model (no API key): it plays what you type, /help shows how"
        if not found.offline:
            place = f" at {found.base_url}" if found.base_url else ""
            model = f"{self.arguments.model or found.model}{place}, /help shows the commands"
        title = f"{self.session} · {self.title}".ljust(25) + "   "
        narrow = len(title + model) > shutil.get_terminal_size().columns
        print(title.rstrip() + "\n  " + model if narrow else title + model, file=self.screen.file, flush=True)

    # one turn --------------------------------------------------------------------

    def turn(self, agent, messages: list[dict], prompt: str) -> tuple[str, str]:
        """Runs one prompt; returns the answer and why it stopped. Whatever happens, messages stay valid."""
        self.meter.turn.clear()
        try:
            agent.add(messages, {"role": "user", "content": core.sendable(prompt)})
            core.emit("user", agent=agent.name, text=messages[-1]["content"])
            answer = agent.run(messages)
            while agent.stop == "end_turn" and agent.has_news(wait=not self.interactive and self.arguments.wait):
                self.screen.print(answer, indent=2)  # it is not the last word any more
                answer = agent.run(messages) or answer
            return answer, agent.stop
        except core.ModelError as error:
            core.emit("error", agent=agent.name, text=str(error))
            return str(error), "error"
        except KeyboardInterrupt:
            core.emit("notice", agent=agent.name, text="interrupted")
            return "interrupted", "interrupted"
        except Exception as error:  # a fault of the program: said in one line, kept whole in the trace
            text = one_line(f"unexpected {type(error).__name__}: {error}", 1_000)
            core.emit("error", agent=agent.name, text=text, traceback=traceback.format_exc())
            return text, "error"
        finally:
            self.screen.rest()

    def show_turn(self, agent, messages: list[dict], prompt: str) -> str:
        """A turn with its answer and meter on the screen; returns why it stopped."""
        answer, stop = self.turn(agent, messages, prompt)
        if answer and stop not in ("error", "interrupted"):
            self.screen.answer(answer)
        if self.meter.turn["replies"]:
            self.screen.print(self.meter.line(self.meter.turn), "dim", 2)
        return stop

    def one_shot(self, prompt: str) -> int:
        """-p: the answer alone on standard output, or one JSON object."""
        answer, stop = self.turn(self.agent, self.messages, prompt)
        failed = stop != "end_turn"
        if self.arguments.output_format == "json":
            figures = self.meter.total
            print(to_json({
                "result": answer, "is_error": failed, "stop": stop, "turns": self.meter.replies,
                "usage": {"input_tokens": figures["in"], "output_tokens": figures["out"],
                          "cache_read_input_tokens": figures["cached"],
                          "cache_creation_input_tokens": figures["written"]},
                "cost": None if figures["unpriced"] else round(figures["cost"], 6),
                "messages": self.messages}), flush=True)
        elif answer and stop not in ("error", "interrupted"):
            print(clean(answer) if sys.stdout.isatty() else answer, flush=True)
        return 130 if stop == "interrupted" else int(failed)

    # permission --------------------------------------------------------------------

    def ask(self, tool: core.Tool, given: dict, rule: str, agent: str) -> str:
        """The permission question. What was typed ahead answers nothing; end of input means no.

        Other agents ask from threads of their own; while the user is at the prompt, their question
        stands above it, and y, n or a typed there answers it.
        """
        with self.asking:
            if not self.screen.prompt or threading.current_thread() is threading.main_thread():
                return self.ask_here(tool, given, rule, agent)
        with self.asking_above:
            return self.ask_above_prompt(tool, given, rule, agent)

    def ask_here(self, tool: core.Tool, given: dict, rule: str, agent: str) -> str:
        """A question on a line of its own, with all of the call where its one line was not enough."""
        self.waiting += typed_ahead()
        line = self.screen.line(f"● {tool.name}  {summary(given)}", 2)
        if line.endswith("…") or line.count("  ") > len(given):  # cut, or a value may look like two
            self.screen.print(details(given), "yellow", 4)
        inner = rule.partition("(")[2].removesuffix(")")
        always = rule if not inner else inner if inner.endswith(" *") else "exactly this"
        first = f"    {'' if agent == 'main' else agent + ': '}allow? [y]es [n]o [a]lways {always}: "
        for question in (first, *["    answer y, n or a: "] * 2):
            with self.screen.lock:  # a drawing that has begun ends before it; what follows goes above it
                self.screen.rest()
                self.screen.prompt = question
            try:
                if chosen := choice(input(question)):
                    return chosen
            except (EOFError, KeyboardInterrupt) as gone:
                print()  # nothing ended the line of the question
                if isinstance(gone, KeyboardInterrupt):
                    raise
                break
            finally:
                self.screen.prompt = ""
        return "no"

    def ask_above_prompt(self, tool: core.Tool, given: dict, rule: str, agent: str) -> str:
        """A question of another agent to a user who is at the prompt; `answer` there ends it."""
        self.question = queue.SimpleQueue()
        self.screen.print(details(given), "yellow", 4)
        self.screen.print(f"{agent} asks for {tool.name}: [y]es [n]o [a]lways {rule}", "bold yellow", 4)
        try:
            return self.question.get()
        finally:
            self.question = None

    # REPL ----------------------------------------------------------------------------

    def repl(self) -> int:
        """Reads prompts until the end of input; returns the exit code."""
        while True:
            try:
                prompt = self.read_prompt()
            except EOFError:
                print(end="\n" * self.interactive)
                return 0
            except KeyboardInterrupt:
                if time.monotonic() - self.left_at < AGAIN:
                    print()
                    return 130
                self.left_at = time.monotonic()
                self.screen.print("\n(Ctrl-C again, or /quit, leaves)", "dim")
                continue
            if prompt.strip().lower() in ("/quit", "/exit"):
                return 0
            if self.question and (chosen := choice(prompt)):
                self.question.put(chosen)
                continue
            if prompt.strip() and self.handle(prompt.strip()) == "interrupted":
                self.left_at = time.monotonic()

    def handle(self, prompt: str) -> str:
        """A slash command or a prompt; returns why the turn stopped."""
        if not (found := re.fullmatch(r"/([a-zA-Z]+)(\s.*)?", prompt, re.DOTALL)):
            try:
                return self.show_turn(self.agent, self.messages, prompt)
            except KeyboardInterrupt:  # while the answer was drawn: the turn itself is over and kept
                self.screen.rest()
                return "interrupted"
        command = self.commands.get(found[1].lower())
        if not command:
            self.screen.print(f"there is no command /{found[1]}; /help lists them", "red", 2)
            return ""
        try:
            shown = command(self.agent, self.messages, (found[2] or "").strip())
        except KeyboardInterrupt:
            shown = "interrupted"
        except Exception as error:
            shown = f"/{found[1]} failed: {core.reason(error)}"
        if shown is not None:
            self.screen.print(shown, indent=2)
        return ""

    def read_prompt(self) -> str:
        """The next prompt. Lines that arrive together (a paste) are one prompt."""
        prompt = f"{self.session} >> "
        if self.interactive and not self.waiting:
            self.waiting += typed_ahead()  # during the turn; only a paste at the prompt is one prompt
        if self.waiting:
            line = self.waiting.pop(0)
            print(prompt + clean(line))
            return line
        if not self.interactive:
            if not (line := sys.stdin.readline()):
                raise EOFError
            return line
        with self.asking:  # not while another agent's question waits for its answer here
            self.screen.prompt = prompt
        try:
            text = input(prompt)
        finally:
            self.screen.prompt = ""
        try:
            while more_typed():
                text += "\n" + input()
        except EOFError:  # Ctrl-D behind a line: it is answered first
            self.waiting.append("/quit")
        return pasted(text)

    # commands --------------------------------------------------------------------------

    def help(self, agent, messages: list[dict], argument: str) -> str:
        """this list"""
        lines = [f"/{name:<9} {(run.__doc__ or '').strip().splitlines()[0] if run.__doc__ else ''}"
                 for name, run in self.commands.items()]
        how = [HOW_TO_PLAY] if core.settings().offline else []
        return "\n".join([*lines, "/quit      leave (so do Ctrl-D, and Ctrl-C twice)", *how])

    def tools(self, agent, messages: list[dict], argument: str) -> str:
        """the tools, as the model sees them"""
        return "\n\n".join(
            f"{tool.name}({', '.join(tool.input_schema.get('properties', {}))}){'  reads only' * tool.read_only}\n"
            + re.sub(r"(?<!\n)\n(?!\n)", " ", tool.description) for tool in agent.tools.values())

    def context(self, agent, messages: list[dict], argument: str) -> str:
        """what fills the context window"""
        return context_report(agent, messages, self.meter.context)

    def cost(self, agent, messages: list[dict], argument: str) -> str:
        """tokens and dollars of this session"""
        unknown = "\nof some replies no price is known" if self.meter.total["unpriced"] else ""
        return self.meter.line(self.meter.total) + f" · cache writes {short(self.meter.total['written'])}" + unknown

    def model(self, agent, messages: list[dict], argument: str) -> str:
        """the model in use; /model ID changes it"""
        agent.model = argument or agent.model
        return f"{agent.model}, window {short(agent.window)} tokens"

    def clear(self, agent, messages: list[dict], argument: str) -> str:
        """forget the conversation (files stay as they are)"""
        messages.clear()
        self.meter.context = 0
        return "the conversation is empty"

    def play_demo(self, *_) -> None:
        """play this session's demonstration in a throw-away workspace"""
        with contextlib.ExitStack() as ends:
            ends.callback(setattr, self, "meter", self.meter)  # the figures of the user's own conversation stay
            self.meter, self.demo_failed = Meter(), False
            folder = ends.enter_context(tempfile.TemporaryDirectory(prefix="agent-demo-", ignore_cleanup_errors=True))
            workspace, cast = core.Workspace(folder), None
            ends.callback(core.end_shells, workspace.root)
            for step in self.demo:
                for name, content in step.get("files", {}).items():
                    core.atomic_write(workspace.path(name), content.encode("utf-8"))
                offline = core.settings().offline  # a real model's commands are asked for here too
                wanted = step.get("make", self.make_agent), step.get("model", "") if offline else ""
                if cast != wanted:
                    cast, messages = wanted, []
                    agent = self.build(workspace, wanted[0], "yes" if offline else "", wanted[1])
                    ends.callback(getattr(agent, "dismiss", int))  # its team would go on in a folder that is gone
                self.play_step(step, agent, messages)

    def play_step(self, step: dict, agent, messages: list[dict]) -> None:
        """One step of a demonstration: what to see, the prompt, the turn, the figure."""
        offline = agent.model.startswith(core.STAND_IN_MODEL)
        self.screen.print(f"\n{step['note']}", "cyan")
        self.screen.print(f"{self.session} >> {step['prompt']}", "bold")
        if offline:
            self.screen.print(f"the stand-in plays: {step['script']}", "dim", 2)
        stop = self.show_turn(agent, messages, step["script"] if offline else step["prompt"])
        if stop == "interrupted":
            raise KeyboardInterrupt
        # a step fails on purpose only where the window is as small as planned
        self.demo_failed |= (stop == "error") != (core.settings().offline and step.get("fails", False))
        if "after" in step and not self.demo_failed:
            self.screen.print(step["after"](agent, messages), "cyan")


def preload() -> None:
    """Imports what the first turn needs and makes the client, while the prompt is already there."""
    with contextlib.suppress(Exception):  # the first turn meets it again and says it in one line
        core.client()
    gc.freeze()  # the SDK's many objects stay: a last look at each of them would delay the end
    import rich.markdown  # noqa: F401


def end(number: int, frame) -> None:
    """SIGTERM and SIGHUP leave by the ordinary way, once, so that nothing outlives the program."""
    for name in {"SIGTERM", "SIGHUP", "SIGINT"} & vars(signal).keys():  # a second one must not cut the clean-up short
        signal.signal(getattr(signal, name), signal.SIG_IGN)
    sys.exit(128 + number)


def main(make_agent: Callable, session: str, title: str, demo: Sequence[dict] = (),
         commands: dict[str, Callable] | None = None, options: dict[str, dict] | None = None) -> None:
    """Runs a session from its command line and exits: 0 done, 1 failed, 2 usage, 130 interrupted."""
    for name, mode in (("stdin", "r"), ("stdout", "w"), ("stderr", "w")):
        if getattr(sys, name) is None:  # closed by whoever started us
            setattr(sys, name, open(os.devnull, mode))
    for stream in (sys.stdin, sys.stdout, sys.stderr):
        stream.reconfigure(encoding="utf-8", errors="replace" if stream is not sys.stdin else "surrogateescape")
    for name in {"SIGTERM", "SIGHUP"} & vars(signal).keys():  # Windows has no SIGHUP
        signal.signal(getattr(signal, name), end)
    try:
        core.load_env_file()
        arguments = parse_arguments(session, title, options or {})
        program = Program(arguments, make_agent, session, title, demo, commands or {}, options or {})
        threading.Thread(target=preload, daemon=True).start()
        if program.interactive and not program.arguments.demo:
            edit_lines()
        if program.arguments.demo:
            program.play_demo()
            sys.exit(int(program.demo_failed))
        sys.exit(program.repl() if program.arguments.prompt is None else program.one_shot(program.arguments.prompt))
    except KeyboardInterrupt:
        sys.exit(130)
    except ModuleNotFoundError as error:
        sys.exit(f"{error.name} is not installed for {sys.executable}; the README's two commands make .venv/bin/python, "
                 "which has it")
    except OSError as error:  # whoever read our output has left, or its disk is full
        if error.errno not in (errno.EPIPE, errno.ENOSPC):  # a folder that cannot be written, say
            sys.exit(f"{session} cannot go on: {core.reason(error)}")
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
        sys.exit(1 if error.errno == errno.EPIPE else f"the output could not be written: {error.strerror}")
