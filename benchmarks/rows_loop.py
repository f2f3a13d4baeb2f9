"""Rows: what the loop costs, in time, in bytes and in tokens."""

import gc
import json
import statistics
from collections.abc import Callable, Iterator
from pathlib import Path

from measure import ROOT, Line, Sizes, compared, fresh, in_turn, row, stand_in, timed


@row
def loop_row(sizes: Sizes, folder: Path) -> Iterator[Line]:
    """A run of class Agent against a bare SDK loop that makes the same requests.

    A turn becomes slower as a conversation grows, on both sides alike, since all of it is sent. So
    the turns at the end of a long run are held against the bare loop's at the same place, and what
    Agent adds there against what it adds in a shorter run. Its own time, with nothing sent, is for
    information: it reads the roles of all messages, which is little beside sending them.
    """
    short, middle, long = sizes.turns
    factors = {}
    with stand_in() as url:
        for before, turns in ((0, short), (0, middle), (long - short, short)):
            ours, theirs = fresh(loop_seconds, before, turns, sizes.runs,
                                 ANTHROPIC_BASE_URL=url, MODEL_ID="stand-in")
            what = f"the last {turns} of {long:,} turns" if before else f"{turns} turns"
            yield compared(what, ours, theirs, 1.15, "bare SDK loop")
            factors[before + turns] = statistics.median(ours) / statistics.median(theirs)
    slower = factors[long] / factors[middle]
    yield Line(f"  what Agent adds to a turn, {long:,} against {middle}", f"x {factors[long]:.3f}",
               f"x {factors[middle]:.3f}", f"{slower:.2f}", f"<= {1 + NOISE} x", slower <= 1 + NOISE)
    first, last = (fresh(own_seconds, turns, sizes.runs) for turns in (middle, long))
    yield compared(f"  its own time a turn, {long:,} turns", last, first, None, f"{middle} turns")


NOISE = 0.05  # each of the two factors is a ratio of medians whose runs spread by more than that


def loop_seconds(before: int, turns: int, runs: int) -> list[list[float]]:
    """Seconds of `turns` turns after `before` others, by Agent and by a bare loop."""
    import core

    core.client()

    def seconds(loop: Callable) -> float:
        messages = conversation(before, turns)
        gc.collect()
        taken = timed(lambda: loop(messages))
        assert len(messages) == 2 * (before + turns), f"{loop.__name__} ended after {len(messages)} messages"
        return taken

    return in_turn(runs, lambda: seconds(agent_loop), lambda: seconds(bare_loop))


def conversation(before: int, turns: int) -> list[dict]:
    """A prompt with all steps, and the calls and results of those already taken."""
    steps = [f"note {number}" for number in range(before + turns - 1)]
    messages: list[dict] = [{"role": "user", "content": "\n".join([*steps, "say Done."])}]
    for number in range(before):
        messages += [
            {"role": "assistant", "content": [{"type": "tool_use", "id": f"earlier_{number}", "name": "note",
                                               "input": {"text": str(number)}}]},
            {"role": "user", "content": [
                {"type": "tool_result", "tool_use_id": f"earlier_{number}", "content": "noted"}]}]
    return messages


SCHEMA = {"type": "object", "properties": {"text": {"type": "string"}}, "required": ["text"]}
NOTE = {"name": "note", "description": "Take a note.", "input_schema": SCHEMA}


def agent_loop(messages: list[dict], kind: type | None = None) -> None:
    import core
    import s01_agent_loop

    note = core.Tool(*NOTE.values(), lambda text: "noted", read_only=True)
    make = kind or s01_agent_loop.Agent
    make(core.Workspace(ROOT), tools=core.registry(note), max_turns=10_000).run(messages)


def bare_loop(messages: list[dict]) -> None:
    """The bare loop of s01's docstring, with the history as plain dicts, which is quicker."""
    import core
    import s01_agent_loop

    system, run = s01_agent_loop.SYSTEM.replace("{root}", str(ROOT)), lambda text: "noted"
    client = core.client()
    while True:
        reply = client.messages.create(
            model="stand-in", max_tokens=16_000, tools=[NOTE], messages=messages, system=system)
        messages.append({"role": "assistant", "content": [block.to_dict() for block in reply.content]})
        calls = [block for block in reply.content if block.type == "tool_use"]
        if not calls:
            return
        messages.append({"role": "user", "content": [
            {"type": "tool_result", "tool_use_id": call.id, "content": run(**call.input)} for call in calls]})


def own_seconds(turns: int, runs: int) -> list[float]:
    """Seconds a turn of Agent alone: the replies are there already, nothing is sent."""
    import core
    from anthropic.types import Message
    from s01_agent_loop import Agent

    def reply(number: int) -> Message:
        call = {"type": "tool_use", "id": f"toolu_{number}", "name": "note", "input": {"text": str(number)}}
        return Message.model_validate({
            "id": "msg", "type": "message", "role": "assistant", "model": "none", "stop_reason": "tool_use",
            "content": [call] if number < turns - 1 else [{"type": "text", "text": "Done."}],
            "usage": {"input_tokens": 1, "output_tokens": 1}})

    class Replayed(Agent):
        def ask_model(self, messages: list[dict]) -> dict:
            self.request(messages)  # built as ever, and not sent
            return core.call_model(lambda: next(replies))

    seconds = []
    for _ in range(runs + 1):
        replies = iter([reply(number) for number in range(turns)])
        seconds.append(timed(lambda: agent_loop(conversation(0, turns), Replayed)) / turns)
    return seconds[1:]


# ------------------------------------------------------------------------------- what a conversation costs

# the model, and so the window, of each
GROWTH = {"s01": "stand-in", "s02": "stand-in", "s06": "stand-in-24k"}
PIECE = 2_400  # characters of a file; as many as there are turns fit the window of s01 and s02


@row
def growth_row(sizes: Sizes, folder: Path) -> Iterator[Line]:
    """What one task costs until a turn: bytes sent, and tokens billed as input.

    Each turn but the last reads one small file: with `cat` in s01, with `read` in s02 and s06. As the
    API bills them, a token written to the cache counts 1.25, one read from it 0.1, any other 1.
    Output is counted apart. s06 works in a window of 24,000 tokens and compacts; its summary calls are
    in the sums.
    """
    turns = sizes.turns[1]
    for session, model in GROWTH.items():
        place, log = folder / session, folder / f"{session}.log"
        place.mkdir()
        for number in range(turns):
            (place / f"{number}.txt").write_text(f"piece {number:03} of a text\n" * (PIECE // 24))
        requests, notes = fresh(play, session, str(place), turns, OFFLINE_LOG=str(log), MODEL_ID=model)
        sent = [json.loads(line)["bytes"] for line in log.read_text().splitlines()]
        for turn in (turns // 4, turns // 2, turns):
            until = sum(1 for at, _ in requests if at <= turn)
            used = [usage for _, usage in requests[:until]]
            yield Line(f"{session}, {turn} turns" + notes * (turn == turns),
                       f"{sum(sent[:until]) / 1e6:.2f} MB, {billed(used) / 1e3:.0f}k tokens", parts(used))


# what a token of each kind costs in the API, in tokens of plain input
FIELDS = {"input_tokens": 1.0, "cache_creation_input_tokens": 1.25, "cache_read_input_tokens": 0.1}


def billed(used: list[dict]) -> float:
    """Input tokens as they are paid for."""
    return sum(usage[field] * weight for usage in used for field, weight in FIELDS.items())


def parts(used: list[dict]) -> str:
    """What the bill consists of, in thousands of tokens."""
    names = zip(("new", "written", "read", "out"), (*FIELDS, "output_tokens"))
    return ", ".join(f"{sum(usage[field] for usage in used) / 1e3:.1f}k {name}" for name, field in names)


def play(session: str, place: str, turns: int) -> tuple[list[tuple[int, dict]], str]:
    """Plays the task; returns (turn, usage) of each request in their order, and what else there is to say."""
    import core
    import s01_agent_loop
    import s02_tool_use
    import s06_compact

    kinds = {"s01": s01_agent_loop.Agent, "s02": s02_tool_use.make_agent, "s06": s06_compact.Compacting}
    requests, compactions, turn = [], 0, 1

    def listen(event: dict) -> None:
        nonlocal compactions, turn
        if event["kind"] == "reply":
            requests.append((turn, event["usage"]))
            turn += event["agent"] == "main"
        compactions += event["kind"] == "compaction"

    core.listeners.append(listen)
    agent = kinds[session](core.Workspace(place), permissions=core.Permissions(mode="yes"))
    verb = "bash cat" if session == "s01" else "read"
    steps = [f"{verb} {number}.txt" for number in range(turns - 1)]
    agent.run([{"role": "user", "content": "\n".join([*steps, "say Done."])}])
    assert turn == turns + 1, f"{session} ended after {turn - 1} turns: {agent.stop}"
    return requests, f", compacted {compactions} x" if compactions else ""
