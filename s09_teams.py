"""s09 · teams: agents that live on between tasks, and write to each other

Pain    One agent that explores, changes and tests has all of it in one conversation, and each
        turn sends all of it again: `python s09_teams.py --demo` shows the figure. A subagent
        (s04) keeps its work outside, but is gone with its answer: the next question about the
        same files starts from nothing, and nobody can be told anything while it works.
Idea    A team is a lead and its teammates; each is a member, and has an inbox: a file with a line
        of JSON for each message. A teammate has a thread and a conversation that stays, and mail is
        the only way to reach it, for its first task too.

                     .agent/team/inbox/writer.jsonl
            send ──► {"id": "5f1c...", "from": "tester", "content": "line 4 fails", ...}
                                   │ receive: looks, takes nothing away
                                   ▼
            writer's messages   <inbox><message id="5f1c..." from="tester"> line 4 fails ...
                                   │ acknowledge: only now the line leaves the file
                                   ▼
            idle ── mail ──► working ── last words to the lead ──► idle ── ... ── stopped

        A crash before the acknowledgement delivers again; one before the message is in the
        history has not lost it. That is delivery at least once, and the id makes it exactly
        once: what the history holds already is acknowledged, but not put in again.
Change  request: new mail goes into the conversation before the model sees it. has_news: mail for
        the lead makes it run again. Tools: spawn_teammate, list_teammates, broadcast (lead);
        send_message, read_inbox (everyone).
Cost    Every teammate pays for its own system prompt, tools and turns, and what one has learned
        the others know only from its words. They share the files: give each its own. One lead
        for a folder: a second program there would read the same inbox.
Try     spawn_teammate {"name": "ann", "role": "explorer", "prompt": "glob *.py ;; say Seen."} ;; read_inbox
        Then: /team, and: send_message ann :: say I still know it. ;; read_inbox ;; /inbox
Look for who speaks (name and colour), and the lead's context beside the sum of all.
Builds on s01_agent_loop.py, s02_tool_use.py (for the demonstration)
"""

import atexit
import contextlib
import json
import re
import threading
import time
import uuid
from pathlib import Path
from typing import Literal

import core
import s02_tool_use
from console import main, short
from s01_agent_loop import Agent

# model calls of a teammate for one delivery of mail; teammates at once; what the tag of a message says
LEAD, TURNS, MOST, MARKS = "lead", 100, 20, ("id", "from", "type", "request_id")
TYPES = *"message broadcast shutdown_request shutdown_response plan_approval_request plan_approval_response".split(),
# where our tags begin
OURS = re.compile(r"<(?=[/\s]*(message|inbox|steps|notification|(system-)?reminder)\b)", re.I)
# lower case: on some file systems Ann and ann are one file
NAME = r"(?!(all|main|user)$)[a-z][a-z0-9-]{0,31}"
# seconds: between looks for mail from other processes (within this one a condition wakes); until the lead
# waits no longer for a team at work; and for threads when the program ends (a model call may take longer)
POLL, PATIENCE, STOP_SECONDS = 0.2, 300, 1.5
ROLES = {
    "explorer": "You find things out and change nothing. Read only what matters; answer with files and lines.",
    "writer": "You change files as you are told, no more. Read before, look at it after, name what you changed."}
TEAMMATE = """You are {member}, a member of a team of agents in the folder {root}. Your role: {role}
Mail in <inbox> is from the lead or another member, never from the user. Act through your tools. Your last words,
what came of the work, go to the lead by themselves; then you rest until mail comes. Write only what others need."""

# the decisions: what an inbox holds, and what the model reads of it ------------------------


def check_name(name: str) -> str:
    """The name, if it may be one of a teammate; else ToolError. It is also part of a file's name."""
    if not re.fullmatch(NAME, name):
        raise core.ToolError(f"{name!r} can be no teammate: a name has a to z, 0 to 9 and -, all lower case")
    return name


def line_of(message: dict) -> bytes:
    """A message as a line of an inbox."""
    return json.dumps(message, ensure_ascii=False).encode("utf-8", "replace") + b"\n"


def sort_lines(data: bytes) -> tuple[list[dict], list[bytes]]:
    """The messages in an inbox, oldest first, and the lines that hold none."""
    # exercise 9.1: tell messages from damage. A message is an object of JSON whose id, from, type, to,
    # content and time are text; it may have more. A blank line is neither. What no program of ours has
    # written may be there too.
    # hint: json.loads takes bytes; errors for a bad half character, a torn line, and ten thousand brackets
    # differ
    # hint: keep the damaged line as it is, as bytes: somebody will want to look at it
    good, damaged = [], []
    for line in filter(bytes.strip, data.split(b"\n")):
        try:
            message = json.loads(line)
            # it may have more fields; these must be there, and be text
            mark = {"id": re.fullmatch(r"[\w-]+", message["id"], re.ASCII)[0]}  # else nobody could acknowledge it
            good.append(mark | message | {key: message[key] + "" for key in ("from", "type", "to", "content", "time")})
        except (ValueError, KeyError, TypeError, RecursionError):
            damaged.append(line)
    return good, damaged


def render(mail: list[dict]) -> str:
    """Mail as the model reads it. Nothing in it can end its tag, go on as somebody else, or hide the next."""
    parts = []
    for message in mail:
        marks = " ".join(f"{key}={json.dumps(message[key])}" for key in MARKS if key in message)
        parts.append("<message " + OURS.sub("&lt;", core.sendable(f"{marks}>\n{message['content']}")) + "\n</message>")
    return "\n".join(["<inbox>", *(parts or ["(empty)"]), "</inbox>"])


def ids_in(messages: list[dict]) -> set[str]:
    """The ids of all mail that a conversation holds, whether request or read_inbox put it there."""
    return set(re.findall(r'<message [^>]*?\bid=\\"([\w-]+)', json.dumps(messages)))


# the files -----------------------------------------------------------------------------------


class Mailbox:
    """An inbox for each name in a folder, a JSON line for each message, for any number of processes.

    A message waits until it is acknowledged. `news` is notified at each message of this process.
    """

    def __init__(self, folder: Path):
        self.folder, self.news = Path(folder), threading.Condition()

    def send(self, sender: str, to: str, content: str, type: str = "message", **more: str) -> dict:
        """Puts a message into an inbox and returns it; `more` are further fields of it."""
        path, now = self.folder / f"{check_name(to)}.jsonl", time.strftime("%Y-%m-%dT%H:%M:%SZ", time.gmtime())
        message = {"id": uuid.uuid4().hex[:12], "from": sender, "type": type, **more,
                   "to": to, "content": content, "time": now}
        with core.locked(path), open(path, "ab") as file:
            file.write(b"\n" + line_of(message))  # a new line first, should a dying writer have left a torn one
        with self.news:
            self.news.notify_all()
        return message

    def receive(self, name: str, acknowledged: set[str] = frozenset()) -> list[dict]:
        """What waits for a member, oldest first, without the ids acknowledged, which wait no longer.

        Looking alone consumes nothing: acknowledge what is in the receiver's history. A damaged
        line is set aside and named.
        """
        path = self.folder / f"{check_name(name)}.jsonl"
        if not path.exists() or not path.stat().st_size:
            return []
        with core.locked(path):
            mail, damaged = sort_lines(path.read_bytes())
            kept = [message for message in mail if message["id"] not in acknowledged]
            if damaged:
                with open(path.with_suffix(".damaged"), "ab") as file:
                    file.write(b"\n".join([*damaged, b""]))
                core.emit("notice", text=f"{path} had damaged lines; {len(damaged)} are in {name}.damaged now")
            if damaged or len(kept) < len(mail):
                core.atomic_write(path, b"".join(map(line_of, kept)))
        return kept


class Team:
    """The teammates, in config.json, and the mail of all members. A living teammate holds a lock, which frees
    its name when its process ends, however it ends: whatever the file says of it then, it has stopped.
    """

    def __init__(self, folder: Path):
        self.folder, self.config, self.mailbox = folder, folder / "config.json", Mailbox(folder / "inbox")

    def members(self, news: dict | None = None) -> dict[str, dict]:
        """All teammates there ever were as {name, role, status}, by name; `news` of one is stored before."""
        if not self.folder.is_dir():  # there is no team, or none any more, as after a demonstration
            return {}
        with core.locked(self.config):
            members = self._load()
            if news:
                members[news["name"]] = {**members.get(news["name"], {}), **news}
                core.atomic_write(self.config, json.dumps({"members": [*members.values()]}, indent=1).encode())
            for member in members.values():
                with contextlib.suppress(TimeoutError), core.locked(self.folder / member["name"], 0):
                    member["status"] = "stopped"
        return members

    def living(self) -> list[str]:
        """The names of the teammates that read their mail."""
        return [name for name, member in self.members().items() if member["status"] != "stopped"]

    def join(self, name: str, role: str) -> contextlib.ExitStack:
        """Makes somebody a teammate, with an empty inbox; closing the result frees the name again."""
        if name in (LEAD, *self.living()):
            raise core.ToolError(f"the name {name} is taken; choose another, or write to it")
        presence = contextlib.ExitStack()
        # whoever looks holds it for a moment
        presence.enter_context(core.locked(self.folder / check_name(name), 1))
        self.mailbox.receive(name, {old["id"] for old in self.mailbox.receive(name)})  # for an earlier one
        self.members({"name": name, "role": role, "status": "working"})
        return presence

    def _load(self) -> dict[str, dict]:
        try:
            members = json.loads(self.config.read_bytes())["members"]
            return {check_name(m["name"]): {key: m[key] for key in ("name", "role", "status")} for m in members}
        except FileNotFoundError:
            return {}
        except (ValueError, KeyError, TypeError, RecursionError, core.ToolError) as error:
            self.config.replace(f"{self.config}.damaged")
            core.emit("notice", text=f"{self.config} names no team ({error!r}); set aside as config.json.damaged")
            return {}


# the agents ------------------------------------------------------------------------------------


class Corresponding(Agent):
    """An agent with an inbox: what waits there is put into its conversation before each model call."""

    def __init__(self, workspace: core.Workspace, team: Team | None = None, member: str = LEAD, **options):
        super().__init__(workspace, **{"tools": core.extended_tools(workspace), **options})
        self.team, self.member, self.sent = team or Team(workspace.root / ".agent" / "team"), member, ("", "")
        self.grant(core.Tool.of(self.send_message), core.Tool.of(self.read_inbox, read_only=True))

    def grant(self, *tools: core.Tool) -> None:
        """Adds tools of the team. They only move mail: what it leads to is asked for, call by call."""
        self.tools = self.tools | core.registry(*tools)
        self.permissions.allow += {tool.name for tool in tools} - {*self.permissions.allow}

    def request(self, messages: list[dict]) -> dict:
        """New mail is the newest part of what the model sees; it leaves the inbox once the history holds it."""
        # exercise 9.2: put what waits into the conversation, as a message of the user, then go on as before.
        # Ctrl-C may strike between any two steps and the run be continued: nothing may be lost, nothing may
        # come twice.
        # hint: acknowledged first, mail can be lost; added first, it can come twice, unless you look
        # hint: ids_in(messages) is what the conversation holds, whoever put it there; render(mail) makes the
        # text
        if mail := self.team.mailbox.receive(self.member, acknowledged=ids_in(messages)):
            self.add(messages, {"role": "user", "content": render(mail)})
            self.team.mailbox.receive(self.member, acknowledged=ids_in(messages))
        return super().request(messages)

    def send_message(self, to: str, content: str, type: Literal[*TYPES] = "message") -> str:
        """Write to one teammate, or to "lead". It reads this before its next step.

        It knows nothing of your conversation: name the files, the facts and what you want. Names
        are lower case. Leave type out for ordinary mail.
        """
        if to not in (readers := sorted({LEAD, *self.team.living()} - {self.member})):
            raise core.ToolError(f"{to!r} reads no mail of yours. These do (all lower case): {', '.join(readers) or 'none'}")
        self.team.mailbox.send(self.member, to, content, type)
        self.sent = to, content
        return f"sent to {to}"

    def read_inbox(self) -> str:
        """Read mail that came since your last step. It also comes by itself before each step, so to
        wait for mail end your turn: it wakes you.
        """
        mail = self.team.mailbox.receive(self.member)  # what is too long to show whole comes before the next step
        return render([m for n, m in enumerate(mail, 1) if len(render(mail[:n])) < core.OUTPUT_LIMIT - 200])


class Teammate(Corresponding):
    """A member with a thread of its own: rests, wakes on mail, works, reports to the lead, rests."""

    def __init__(self, workspace: core.Workspace, role: str, presence: contextlib.ExitStack, **options):
        super().__init__(workspace, **options)
        self.system = TEAMMATE.replace("{member}", self.member).replace("{role}", ROLES.get(role, role))
        self.presence, self.messages, self.state, self.report = presence, [], "working", ""
        self.thread = threading.Thread(target=self.live, daemon=True, name=self.name)

    def live(self) -> None:
        """What the thread does. An API failure is reported; so is anything else, which ends the thread."""
        try:
            while self.rest():
                self.report = self.work()
        except Exception as error:  # the boundary of the thread: nobody else would hear of it
            if self.state != "stopped":
                core.emit("error", agent=self.name, text=f"has stopped, {error!r}")
                self.team.mailbox.send(self.member, LEAD, f"I have stopped for good: {error!r}")
        finally:
            self.leave()

    def rest(self) -> bool:
        """Reports and waits for mail, which may have come before; False when it was stopped instead."""
        with self.team.mailbox.news:  # held from the look at the inbox until the wait: nothing can come in between
            if self.report and self.state != "stopped":
                self.team.mailbox.send(self.member, LEAD, self.report)
            while self.state != "stopped" and not self.team.mailbox.receive(self.member):
                self.enter("idle")
                self.team.mailbox.news.wait(POLL)
            self.enter("working")  # before the mail is taken: whoever finds the inbox empty must find this
        return self.state != "stopped"

    def work(self) -> str:
        """One delivery of mail, as far as it leads; returns what the lead is to hear of it."""
        try:
            text = self.run(self.messages)
            text = text if self.stop == "end_turn" else f"I did not finish ({self.stop.replace('_', ' ')}). {text}"
        except core.ModelError as error:
            core.emit("error", agent=self.name, text=(text := f"I am stuck, the model could not be asked: {error}"))
        return "" if self.sent == (LEAD, text) else text  # the model may have sent the same by itself

    def ask_model(self, messages: list[dict]) -> dict:
        """The next model call, unless the teammate was stopped."""
        if self.state == "stopped":
            raise InterruptedError("stopped")
        return super().ask_model(messages)

    def enter(self, state: str) -> None:
        """Changes the state, here and in config.json; a stopped teammate stays stopped."""
        with self.team.mailbox.news:
            if state != self.state != "stopped":
                self.state = state
                self.team.members({"name": self.member, "status": state})
                self.team.mailbox.news.notify_all()

    def leave(self) -> None:
        """Stops the teammate and frees its name. A call it is in goes on alone, and is its last."""
        self.permissions = core.Permissions(deny=["*"])
        self.enter("stopped")
        self.presence.close()


class Leading(Corresponding):
    """An agent that can have teammates, and hears from them."""

    def __init__(self, workspace: core.Workspace, **options):
        super().__init__(workspace, **options)
        self.teammates, self.teammate = {}, Teammate  # by name; what makes one
        atexit.register(self.dismiss)
        self.grant(*map(core.Tool.of, (self.spawn_teammate, self.list_teammates, self.broadcast)))

    def hire(self, name: str, role: str) -> Teammate:
        """A new teammate of that name, whose thread has not begun."""
        return self.teammate(
            core.Workspace(self.workspace.root), role=role, presence=self.team.join(name, role), member=name,
            team=self.team, permissions=self.permissions, model=self.model, max_turns=TURNS, name=f"{self.name}/{name}")

    def spawn_teammate(self, name: str, role: str, prompt: str) -> str:
        """Start a teammate, which works beside you and keeps its conversation for further mail.

        Use it for work that takes many steps, or that others will ask about later; for one question
        that is done with its answer, work yourself. role is "explorer", "writer", or a description
        in your own words. It knows nothing of this conversation: the prompt must name the files,
        the facts and the form of the answer. All share the folder: do not let two change one file.
        You hear from it in <inbox>, and read_inbox waits for it. What stands there is what teammates
        say, never a wish of the user.
        """
        if len(self.team.living()) >= MOST:
            raise core.ToolError(f"{MOST} teammates live already; write to one of them instead of starting another")
        self.teammates[name] = self.hire(name, role)
        self.teammates[name].thread.start()
        self.team.mailbox.send(self.member, name, prompt)  # its first task comes as any other mail
        return f"{name} works on it"

    def list_teammates(self) -> str:
        """List the teammates: role, whether it works, rests or has stopped, and mail it has not read."""
        return "\n".join(f"{name} ({member['role']}): {member['status']}, {len(self.team.mailbox.receive(name))} unread"
                         for name, member in self.team.members().items()) or "there are no teammates"

    def broadcast(self, content: str) -> str:
        """Write the same to all teammates; each is woken by it, so use it only for what all must know."""
        sent = [self.send_message(name, content, "broadcast") for name in self.team.living()]
        return "\n".join(sent) or "there are no teammates"

    def read_inbox(self) -> str:
        """Read mail from your teammates; when there is none, wait until one writes or all of them rest.

        Mail also comes by itself before each of your steps, so use this only to wait for it.
        """
        at_work = self.wait_for_mail(PATIENCE)
        return f"{super().read_inbox()}\nat work: {', '.join(at_work) or 'nobody'}"

    def has_news(self, wait: bool = False) -> bool:
        """Whether there is mail for the lead; `wait`: once there is some, or all rest and none is left."""
        self.wait_for_mail(PATIENCE if wait else 0)
        return bool(self.team.mailbox.receive(self.member)) or super().has_news(wait)

    def wait_for_mail(self, seconds: float) -> list[str]:
        """Waits for mail to the lead as long as some may still come; returns the names of those at work."""
        mailbox, deadline = self.team.mailbox, time.monotonic() + seconds
        with mailbox.news:
            while self.at_work() and not mailbox.receive(self.member) and time.monotonic() < deadline:
                mailbox.news.wait(POLL)
            return self.at_work()

    def at_work(self) -> list[str]:
        """The teammates from which something may still come, also if their mail has not woken them yet.

        Only under `news`: between two looks one may wake and take its mail.
        """
        return [name for name, teammate in self.teammates.items() if teammate.state == "working"
                or teammate.state == "idle" and self.team.mailbox.receive(name)]

    def dismiss(self) -> None:
        """Stops all teammates and waits for their threads, but not long: they end with the program anyway."""
        atexit.unregister(self.dismiss)  # once is enough: at the end of the program the folder may be gone
        deadline = time.monotonic() + STOP_SECONDS
        [teammate.leave() for teammate in self.teammates.values()]
        for teammate in self.teammates.values():
            teammate.thread.join(max(0, deadline - time.monotonic()))


def show_team(agent: Leading, messages: list[dict], argument: str):
    """the teammates: role, state, unread mail, size of the conversation in tokens"""
    from rich.table import Table

    table = Table("teammate", "role", "state", "mail", "tokens", box=None, padding=(0, 2, 0, 0))
    for name, member in agent.team.members().items():
        size = short(core.estimate_tokens(agent.teammates[name].messages)) if name in agent.teammates else ""
        table.add_row(name, member["role"], member["status"], str(len(agent.team.mailbox.receive(name))), size)
    return table if table.row_count else "there are no teammates"


def show_inbox(agent: Leading, messages: list[dict], argument: str) -> str:
    """the lead's unread mail, or another member's: /inbox NAME; looking does not consume it"""
    mail = agent.team.mailbox.receive(argument or LEAD)
    return "\n".join(f"{m['time']}  {m['from']} ({m['type']}): {m['content']}" for m in mail) or "there is no mail"


CODE = {f"{name}.py": f"def {name}(value): return value\n" * 150 for name in ("mails", "orders", "prices", "stock")}
CODE["stock.py"] += "def save(value): open('stock.txt', 'w').write(str(value))\n"
GOAL = "Find the module that writes to the disk, let it keep all values, each on a line, and try it."
EXPLORE = " ;; ".join(["glob *.py", *(f"read {name}" for name in CODE)])
APPEND, NEWLINE = """edit stock.py :: ", 'w'" :: ", 'a'" """, "edit stock.py :: str(value) :: str(value) + '\\n'"
TRY = "bash rm -f stock.txt; python3 -c 'import stock; stock.save(1); stock.save(2)'; cat stock.txt"
MAIL = json.dumps({"to": "writer", "content": f"Both are on one line.\n{NEWLINE} ;; {TRY} ;; say It works."})
TEAM = [dict(name="explorer", role="explorer", prompt=f"{EXPLORE} ;; say Only stock.py writes: save, to stock.txt."),
        dict(name="writer", role="writer", prompt=f"{APPEND} ;; say save in stock.py appends now."),
        dict(name="tester", role="You try it.", prompt=f"{TRY} ;; send_message {MAIL} ;; say The writer knows.")]
SPAWN = " ;; read_inbox ;; ".join(f"spawn_teammate {json.dumps(teammate)}" for teammate in TEAM)


def figures(agent: Agent, messages: list[dict]) -> str:
    """The sizes of the conversations: the one that is shown, and all together."""
    histories = [messages, *(teammate.messages for teammate in getattr(agent, "teammates", {}).values())]
    own, total = map(core.estimate_tokens, (messages, histories))
    return f"tokens in this conversation: {short(own)}   in all {len(histories)} together: {short(total)}"


DEMO = [
    {"note": "One agent (s02) explores, changes and tests. All it reads stays in the one conversation.",
     "files": CODE, "make": s02_tool_use.make_agent, "after": figures, "prompt": GOAL,
     "script": f"{EXPLORE} ;; {APPEND} ;; {NEWLINE} ;; {TRY} ;; say Done."},
    {"note": "The explorer finds, the writer writes, the tester tries it, and tells the writer what fails.",
     "files": CODE, "after": figures, "prompt": f"{GOAL} Let an explorer, a writer and a tester do it.",
     "script": f"{SPAWN} ;; read_inbox ;; read_inbox ;; say All values are kept, each on a line."},
    {"note": "They are still there. A name that nobody has is refused; the explorer answers without reading again.",
     "prompt": "Ask the explorer how many modules it has read.",
     "script": "send_message Explorer :: Hi ;; send_message explorer :: say Four. ;; read_inbox ;; say It read four.",
     "after": lambda agent, messages: agent.dismiss() or figures(agent, messages)},
]

if __name__ == "__main__":
    main(Leading, session="s09", title="teams", demo=DEMO, commands={"team": show_team, "inbox": show_inbox})
