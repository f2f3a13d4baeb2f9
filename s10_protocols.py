"""s10 · protocols: who may send when, and how every request ends

Pain    Mail alone (s09) knows no questions. Two teammates ask each other, both rest until the answer
        comes, and neither will give one: no error, no deadline, nobody to blame. And "please
        plan first" is a wish: one that writes at once has broken nothing.
        `python s10_protocols.py --demo` shows both.
Idea    A state for each agent, one table of what may follow what, and an id and a deadline for
        each request. Then the questions have answers: who waits for whom, is this reply the
        first, late, or doubled, would this request close a circle?

                       ask             sent                    ended
            IDLE ───────────► REQUESTING ────► WAITING ─────────────────► IDLE, or RESPONDING
              │  ▲                ▲  └─ refused at once: back               when it owes an answer
              │  └── answered ──┐ │ to answer, it must ask
              └─ is asked ──► RESPONDING

        A request ends in exactly one of answered, refused, timed out, cancelled. An agent waits
        for one thing at a time, so who waits for whom is a chain, and a cycle is found by
        walking it before the request is made.
        The machine is a plain object: no thread, no model, no clock (time is passed in). So it
        can be tried out in all orders of events; the mailbox carries what it allows.
Change  Tools: request, respond (everyone); submit_plan (teammates); review_plan, shutdown_teammate
        (lead). permissions: a teammate's gate denies what changes anything until its plan is
        approved. That is a rule in the harness, not a sentence in a prompt.
Cost    A request blocks its sender: it reads no other mail until the end or the deadline. A plan
        costs a round of both agents. Who may never answer must be stopped by someone.
Try     spawn_teammate {"name": "ann", "role": "writer", "prompt": "write a :: x ;; submit_plan A. ;; say Wait."}
        read_inbox ;; review_plan r1 :: true :: write a :: x
        read_inbox ;; shutdown_teammate ann :: respond r2 :: Bye.
Look for the refused write, and the log of states: /protocol
Builds on s09_teams.py
"""

import enum
import functools
import json
import re
import time
from collections.abc import Callable
from dataclasses import dataclass, fields, replace

import core
from console import main
from s09_teams import LEAD, POLL, Corresponding, Leading, Team, Teammate, show_inbox, show_team

ASK_SECONDS, LONGEST = 120, 600  # how long a question waits: if nothing is said, and at most
PLAN_SECONDS = 3600  # for a review; a person may be asked
PLAN, SHUTDOWN = "plan_approval_request", "shutdown_request"
# what a teammate may do before its plan is approved, beside what only reads
TALKING = ("send_message", "read_inbox", "request", "respond", "submit_plan")
PLAN_FIRST = """
Before you change anything, submit_plan: until the lead approves it, every tool that could change something is
refused. Mail with a request_id wants an answer by respond, with that id; with refuse=true you decline."""

# the machine: no thread, no model, no clock --------------------------------------------------


class AgentState(enum.StrEnum):
    IDLE = "idle"
    REQUESTING = "requesting"
    WAITING = "waiting"
    RESPONDING = "responding"  # it owes an answer


IDLE, REQUESTING, WAITING, RESPONDING = AgentState
TRANSITIONS = {
    IDLE: (REQUESTING, RESPONDING),
    REQUESTING: (WAITING, IDLE, RESPONDING),
    WAITING: (IDLE, RESPONDING),
    RESPONDING: (IDLE, REQUESTING),
}


class ProtocolError(core.ToolError):
    """What was tried is not allowed now; the text says what is."""


@dataclass
class Request:
    """Who asks whom, until when (in seconds of the caller's clock), and how it ended.

    `outcome` is "" while it is open, then one of answered, refused, timed out, cancelled, for good.
    """

    id: str
    sender: str
    to: str
    kind: str
    deadline: float
    outcome: str = ""
    answer: str = ""


class Protocol:
    """The states of agents and the requests between them. `log` holds (agent, before, after, why).

    An agent is known by its name; one that was never heard of is idle. `report` is called with
    each entry of the log.
    """

    def __init__(self, first: int = 1, report: Callable = lambda *transition: None):
        self.first, self.report = first, report
        self.states: dict[str, AgentState] = {}
        self.requests: dict[str, Request] = {}
        self.log: list[tuple[str, AgentState, AgentState, str]] = []

    def state(self, agent: str) -> AgentState:
        return self.states.get(agent, IDLE)

    def pending(self, agent: str) -> list[Request]:
        """The open requests to an agent."""
        return [request for request in self.requests.values() if request.to == agent and not request.outcome]

    def awaits(self, agent: str) -> Request | None:
        """The open request of an agent; it has one at most."""
        return next((one for one in self.requests.values() if one.sender == agent and not one.outcome), None)

    def names(self, requests: list[Request]) -> str:
        """The ids of requests, as text."""
        return ", ".join(request.id for request in requests) or "nothing"

    def move(self, agent: str, state: AgentState, why: str) -> None:
        """One transition; ProtocolError if the table has it not."""
        before = self.state(agent)
        if state not in TRANSITIONS[before]:
            on = f" for {request.id} from {request.to}" if (request := self.awaits(agent)) else ""
            raise ProtocolError(f"{agent} is {before}{on} and cannot be {state}; next it can be "
                                f"{' or '.join(TRANSITIONS[before])}")
        self.states[agent] = state
        self.log.append((agent, before, state, why))
        self.report(*self.log[-1])

    def settle(self, agent: str, why: str) -> None:
        """Moves an agent to where its open requests put it, if it is not there."""
        state = WAITING if self.awaits(agent) else RESPONDING if self.pending(agent) else IDLE
        if state != self.state(agent):
            self.move(agent, state, why)

    def cycle(self, sender: str, to: str) -> list[str]:
        """Who would wait for whom, from the sender round to itself, if it asked; empty without a cycle."""
        # exercise 10.1: find the circle before it is closed: ["ann", "bob", "ann"] if bob waits for ann
        # already.
        # hint: each agent waits for one thing at most, so there is one way to walk: self.awaits(agent)
        # hint: the request is not made yet: begin with the step from sender to `to` yourself. Who asks
        # itself?
        path = [sender, to]
        while path[-1] != sender and (request := self.awaits(path[-1])):
            path.append(request.to)
        return path if path[-1] == sender else []

    def ask(self, sender: str, to: str, kind: str, now: float, seconds: float) -> Request:
        """A new request. ProtocolError if the sender waits already, or if agents would wait in a circle."""
        self.move(sender, REQUESTING, f"asks {to}")
        if cycle := self.cycle(sender, to):
            self.settle(sender, f"refused: {' -> '.join(cycle)}")
            first = f"First answer what {sender} was asked: {self.names(self.pending(sender))}"
            raise ProtocolError(f"refused at once: {' -> '.join(cycle)} would wait for each other for ever. {first}")
        request = Request(f"r{self.first + len(self.requests)}", sender, to, kind, now + seconds)
        self.requests[request.id] = request
        self.settle(sender, f"{request.id} is sent")
        self.settle(to, f"{request.id} from {sender}")
        return request

    def end(self, request: Request, outcome: str, answer: str = "") -> None:
        """Ends an open request and frees both sides."""
        request.outcome, request.answer = outcome, answer
        for agent in (request.sender, request.to):
            self.settle(agent, f"{request.id} {outcome}")

    def answer(self, request_id: str, agent: str, content: str, now: float, refuse: bool = False) -> Request:
        """The answer to a request; ProtocolError if it is late, doubled, or not this agent's to give."""
        self.expire(now)
        request = self.requests.get(request_id)
        if not request or request.to != agent:
            raise ProtocolError(f"{agent} was not asked {request_id!r}; open: {self.names(self.pending(agent))}")
        if request.outcome:
            raise ProtocolError(f"{request_id} is {request.outcome} already; nobody waits for this any more")
        self.end(request, "refused" if refuse else "answered", content)
        return request

    def expire(self, now: float) -> list[Request]:
        """Ends the requests whose deadline is over, and returns them."""
        late = [one for one in self.requests.values() if not one.outcome and now > one.deadline]
        for request in late:
            self.end(request, "timed out", "no answer came in time")
        return late

    def leave(self, agent: str) -> None:
        """Cancels what an agent asked and was asked: it is gone."""
        for request in [self.awaits(agent), *self.pending(agent)]:
            if request:
                self.end(request, "cancelled", f"{agent} has left")


# the mailbox carries it ------------------------------------------------------------------------


class Exchange:
    """The protocol of one team in action. What moves it holds `news`, the condition of its mailbox."""

    def __init__(self, team: Team):
        self.team, self.news, self.present = team, team.mailbox.news, [LEAD]
        # the lead may still have mail of an earlier run: no new request may have the id of an old one
        old = re.findall(r'"request_id": "r(\d{1,9})"', json.dumps(team.mailbox.receive(LEAD)))
        self.protocol = Protocol(max(map(int, old), default=0) + 1, lambda agent, before, after, why: core.emit(
            "transition", member=agent, before=before, after=after, why=why))

    def ask(self, sender: str, to: str, kind: str, content: str, seconds: float) -> Request:
        """Sends a request; ProtocolError if it may not be made now."""
        with self.news:
            self.expire()
            if to not in (others := [name for name in self.present if name != sender]):
                raise ProtocolError(f"{to!r} cannot answer {sender}; these can: {', '.join(others) or 'nobody yet'}")
            request = self.protocol.ask(sender, to, kind, time.monotonic(), seconds)
            self.team.mailbox.send(sender, to, content, kind, request_id=request.id)
        return request

    def wait(self, request: Request) -> Request:
        """Returns a request when it has ended; an interrupt cancels it."""
        with self.news:
            try:
                while not request.outcome:
                    self.news.wait(POLL)
                    self.expire()
            finally:
                if not request.outcome:
                    self.protocol.end(request, "cancelled", "the sender was interrupted")
        return request

    def answer(self, request_id: str, agent: str, content: str, refuse: bool, review: bool = False) -> Request:
        """Ends a request by the answer of whom it was sent to; only a review answers a plan."""
        with self.news:
            self.expire()
            request = self.protocol.requests.get(request_id)
            if request and (request.kind == PLAN) != review:
                raise ProtocolError(f"{request_id} is a {request.kind}: use {'respond' if review else 'review_plan'}")
            request = self.protocol.answer(request_id, agent, content, time.monotonic(), refuse)
            self.news.notify_all()
        return request

    def expire(self) -> None:
        """Ends what is overdue; whoever rests until its plan is reviewed is woken by mail."""
        for request in self.protocol.expire(time.monotonic()):
            if request.kind == PLAN:
                text = f"Nobody has reviewed {request.id} in time. Submit it again, if it is still wanted."
                self.team.mailbox.send(request.to, request.sender, text, "plan_approval_response")


class Negotiating(Corresponding):
    """An agent that can ask another and wait for the answer."""

    def __init__(self, workspace: core.Workspace, exchange: Exchange | None = None, **options):
        super().__init__(workspace, **options)
        self.exchange = exchange or Exchange(self.team)
        self.grant(replace(core.Tool.of(self.ask), name="request"), core.Tool.of(self.respond))

    def ask(self, to: str, question: str, timeout: float = ASK_SECONDS) -> str:
        """Ask a teammate, or "lead", and wait for the answer, which is this call's result.

        Use it when you cannot go on without the answer; if you can, use send_message. It knows
        nothing of your conversation. timeout: seconds you will wait, at most 600. A request that
        would let agents wait for each other in a circle is refused.
        """
        request = self.exchange.ask(self.member, to, "message", question, min(timeout, LONGEST))
        if self.exchange.wait(request).outcome != "answered":
            raise core.ToolError(f"{request.id} to {to} was not answered but {request.outcome}: {request.answer}")
        return request.answer

    def respond(self, request_id: str, content: str, refuse: bool = False) -> str:
        """Answer a request: a message with a request_id that came to you.

        For a shutdown_request an answer means that you agree and stop after this turn. With
        refuse=true you decline, and content says why.
        """
        request = self.exchange.answer(request_id, self.member, content, refuse)
        return f"{request.sender} has your answer to {request_id}: {request.outcome}"


class PlanGate(core.Permissions):
    """Permissions of a teammate: what could change anything is denied until its plan is approved."""

    def __init__(self, inner: core.Permissions):
        super().__init__(**{field.name: getattr(inner, field.name) for field in fields(core.Permissions)})
        self.inner, self.approved = inner, False  # with the same lists: "always" holds for the whole team

    def decide(self, tool: core.Tool, given: dict) -> core.Decision:
        """What the rules say, behind the gate."""
        # exercise 10.2: until a plan is approved, deny all that could change anything, with a reason that
        # names submit_plan; a tool that somebody invents tomorrow too. Behind the gate the rules in
        # self.inner decide.
        # hint: a list of what is forbidden is always one too short. What may run? See tool.read_only, and
        # TALKING
        # hint: core.Decision("deny", why)
        if not (self.approved or tool.read_only or tool.name in TALKING):
            return core.Decision("deny", "no plan of yours is approved; submit_plan, and end your turn to wait for it")
        return self.inner.decide(tool, given)


class PlanningTeammate(Negotiating, Teammate):
    """A teammate that plans before it changes anything, and may be asked to stop."""

    def __init__(self, workspace: core.Workspace, permissions: core.Permissions, **options):
        self.gate = PlanGate(permissions)
        super().__init__(workspace, permissions=self.gate, **options)
        self.system += PLAN_FIRST
        self.exchange.present.append(self.member)
        self.grant(core.Tool.of(self.submit_plan))

    def submit_plan(self, plan: str) -> str:
        """Submit what you are going to change, and how, for the lead's approval.

        Needed before anything that could change a file or run a command. Then end your turn:
        the review wakes you. A new plan needs a new approval.
        """
        with self.exchange.news:  # the lead could approve before the gate is shut
            request = self.exchange.ask(self.member, LEAD, PLAN, plan, PLAN_SECONDS)
            self.gate.approved = False
        return f"submitted as {request.id}; end your turn now, the review wakes you"

    def work(self) -> str:
        """One delivery of mail; if its last act was to submit a plan, the lead has that, and no report."""
        report = super().work()
        last = [block.get("name") for message in self.messages[-3:] for block in core.as_blocks(message["content"])]
        return "" if "submit_plan" in last and self.stop == "end_turn" else report

    def enter(self, state: str) -> None:
        """Changes the state; called at every look for mail, so deadlines pass while everybody rests."""
        with self.exchange.news:
            self.exchange.expire()
            super().enter(state)

    def leave(self) -> None:
        """Stops the teammate; who waits for it is told."""
        with self.exchange.news:
            if self.state != "stopped":  # else the name may be another's by now
                self.exchange.present.remove(self.member)
                self.exchange.protocol.leave(self.member)
            super().leave()


class Chairing(Negotiating, Leading):
    """A lead that reviews plans and asks teammates to stop."""

    shutdown_seconds = 30  # for the answer to a shutdown request, and again for the end of the work

    def __init__(self, workspace: core.Workspace, **options):
        super().__init__(workspace, **options)
        self.teammate = functools.partial(PlanningTeammate, exchange=self.exchange)
        self.grant(core.Tool.of(self.review_plan), core.Tool.of(self.shutdown_teammate))

    def review_plan(self, request_id: str, approve: bool, feedback: str = "") -> str:
        """Approve or reject the plan that came as a plan_approval_request.

        Approval lets the teammate change things and wakes it. A rejection needs feedback: what must
        be different.
        """
        if not (approve or feedback.strip()):
            raise core.ToolError("review_plan: a rejection needs feedback, or the teammate cannot do better")
        with self.exchange.news:
            request = self.exchange.answer(request_id, self.member, feedback, refuse=not approve, review=True)
            self.teammates[request.sender].gate.approved = approve
            verdict = "approved: go on" if approve else "rejected: revise it, and submit it again"
            self.team.mailbox.send(self.member, request.sender, f"Your plan is {verdict}.\n{feedback}",
                                   "plan_approval_response", request_id=request_id)
        return f"{request.sender} is told that its plan is {verdict}"

    def shutdown_teammate(self, name: str, reason: str = "") -> str:
        """Ask a teammate to stop, and wait for what it says.

        It may agree, finishes its turn and stops; or refuse, with a reason. If it does not
        answer in time it is stopped all the same.
        """
        request = self.exchange.wait(self.exchange.ask(
            self.member, name, SHUTDOWN, reason or "Please stop, or say what is still open.", self.shutdown_seconds))
        if request.outcome == "refused":
            return f"{name} refuses to stop: {request.answer}"
        teammate, deadline = self.teammates[name], time.monotonic() + self.shutdown_seconds
        with self.exchange.news:
            while request.outcome == "answered" and teammate.state == "working" and time.monotonic() < deadline:
                self.exchange.news.wait(POLL)
        late = " (in the middle of its work)" if teammate.state == "working" else ""
        teammate.leave()
        return f"{name} has stopped{late}; the request was {request.outcome}: {request.answer}"


def show_protocol(agent: Chairing, messages: list[dict], argument: str) -> str:
    """the log of states, and the requests that are open; /protocol NAME: of one agent"""
    protocol = agent.exchange.protocol
    lines = [f"{name:<7}{before:>11} -> {after:<11}{why}" for name, before, after, why in protocol.log
             if argument in ("", name)]
    lines += [f"open: {one.id} {one.sender} -> {one.to} ({one.kind})" for one in protocol.requests.values()
              if not one.outcome]
    return "\n".join(lines) or "there are no requests"


def call(tool: str, **given) -> str:
    """A step of the stand-in; it may stand inside another one's text."""
    return f"{tool} {json.dumps(given)}"


def states(agent: Leading, messages: list[dict]) -> str:
    """How the members are, as one line; then they are dismissed."""
    lines = [f"{name} is {teammate.state}" for name, teammate in agent.teammates.items()]
    agent.dismiss()
    return f"{', '.join(lines)}: no error, no deadline, no answer"


BOB = call("spawn_teammate", name="bob", role="writer", prompt="say I am here.") + " ;; read_inbox"
HOST = call("send_message", to="ann", content="First tell me the host.\nsay I wait for bob.")
MAIL = call("send_message", to="bob", content=f"Which port?\n{HOST}\nsay I wait for ann.") + " ;; say I wait for bob."
BACK = call("request", to="ann", question="First tell me the host.")
ASK = call("request", to="bob", question=f"Which port?\n{BACK}\nrespond r1 :: 80\nsay I have.") + " ;; say It is 80."
WRITER = "write notes.txt :: new ;; submit_plan I will overwrite notes.txt. ;; say I wait for the review."
BETTER = "Keep what is there.\nsubmit_plan I will append to notes.txt. ;; say I wait for the review."
STEPS = [call("spawn_teammate", name="writer", role="writer", prompt=WRITER), "read_inbox",
         call("review_plan", request_id="r2", approve=False, feedback=BETTER), "read_inbox",
         call("review_plan", request_id="r3", approve=True, feedback="bash echo new >> notes.txt"), "read_inbox",
         call("shutdown_teammate", name="writer", reason="Thank you.\nrespond r4 :: Nothing is open. ;; say Goodbye."),
         "bash cat notes.txt", "say The writer kept the old line, and has stopped."]
DEMO = [
    {"note": "Mail alone (s09): ann asks bob for the port, bob asks ann for the host first. Both rest.",
     "make": Leading, "prompt": "Let bob and ann find out each other's host and port.", "after": states,
     "script": f"{BOB} ;; {call('spawn_teammate', name='ann', role='writer', prompt=MAIL)} ;; "
               "read_inbox ;; read_inbox ;; read_inbox ;; say I have no answer."},
    {"note": "The same with requests: asking back would close a circle and is refused at once. So bob answers.",
     "prompt": "Let bob and ann find out each other's host and port.",
     "after": lambda agent, messages: show_protocol(agent, messages, ""),
     "script": f"{BOB} ;; {call('spawn_teammate', name='ann', role='writer', prompt=ASK)} ;; "
               "read_inbox ;; read_inbox ;; say The port is 80."},
    {"note": "Writing without a plan is denied by the gate. Then: plan, rejection, better plan, approval, shutdown.",
     "files": {"notes.txt": "old\n"}, "prompt": "Let a writer add to notes.txt by an approved plan. Shut it down.",
     "after": lambda agent, messages: agent.dismiss() or show_protocol(agent, messages, "writer"),
     "script": " ;; ".join(STEPS)},
]

if __name__ == "__main__":
    main(Chairing, session="s10", title="protocols", demo=DEMO,
         commands={"team": show_team, "inbox": show_inbox, "protocol": show_protocol})
