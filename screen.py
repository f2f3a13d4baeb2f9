"""screen · what a person sees: events as lines, answers as Markdown, the meter

`Screen.listen` is a listener of `core.emit`. Text from a model, a tool or a file is never markup
and never reaches the terminal raw: `clean` shows control characters instead of sending them.
rich is imported when the first line is drawn, not before, since the prompt must not wait for it.
"""

import collections
import json
import os
import re
import shutil
import sys
import threading
from collections.abc import Callable
from pathlib import Path

import core

TRACE_VERSION = 1
FOLDED_LINES = 6  # of a result on the screen; the model gets all of it
STOPPED = {
    "max_tokens": "the answer was cut at the limit of one reply and is not finished; say: go on",
    "model_context_window_exceeded": "the context window is full; /clear starts afresh, /compact (s06) shortens it",
    "refusal": "the model refused to answer",
    "empty": "the model gave no text",
    "max_turns": "the turn limit was reached before the work was done (--max-turns); say: go on",
    "repeated": "the same call gave the same result again and again, so the loop was ended",
}


def clean(text: str) -> str:
    """Text that cannot act on a terminal: control, escape and direction-override characters made visible."""
    return re.sub(r"[\x00-\x08\x0b-\x1f\x7f-\x9f\u202a-\u202e\u2066-\u2069]",
                  lambda found: chr(0x2400 + ord(found[0])) if ord(found[0]) < 32 else "\ufffd",
                  text.replace("\r\n", "\n").expandtabs(4))


def short(number: float) -> str:
    """A count for the meter: 74, 1.1k, 200k, 1.2M."""
    for limit, divisor, unit in ((1_000, 1, ""), (999_500, 1_000, "k"), (float("inf"), 1_000_000, "M")):
        if number < limit:
            value = number / divisor
            return (f"{value:.1f}" if unit and value < 99.5 else f"{value:.0f}").removesuffix(".0") + unit


def width(file) -> int:
    """Columns to fill: the terminal's now (at least 20), or what a log can bear in a pipe."""
    return max(20, shutil.get_terminal_size().columns) if file.isatty() else 500


class Meter:
    """Sums what the API reports. `turn` is reset with each prompt, `total` is the session's."""

    def __init__(self):
        self.total, self.turn = collections.Counter(), collections.Counter()
        self.context = self.window = self.replies = 0

    def on_reply(self, event: dict) -> None:
        usage, price = event["usage"], core.cost(event["model"], event["usage"])
        figures = {"replies": int(event["agent"] == "main"),
                   "in": core.prompt_tokens(usage), "out": usage.get("output_tokens") or 0,
                   "cached": usage.get("cache_read_input_tokens") or 0,
                   "written": usage.get("cache_creation_input_tokens") or 0,
                   "cost": price or 0.0, "unpriced": price is None}
        for counter in (self.total, self.turn):
            counter.update(figures)
        if figures["replies"]:
            self.replies += 1
            self.context, self.window = figures["in"] + figures["out"], core.model_info(event["model"]).window

    def line(self, figures: collections.Counter) -> str:
        """The meter: replies, context, tokens in and out, and the cost where the price is known."""
        cached = f" ({short(figures['cached'])} cached)" if figures["cached"] else ""
        cost = f" · ${figures['cost']:.4f}" if figures["cost"] else ""
        turns = f"{figures['replies']} turn{'s' * (figures['replies'] != 1)}"
        return (f"{turns} · context {short(self.context)} of {short(self.window or 1)} · "
                f"in {short(figures['in'])}{cached} · out {short(figures['out'])}{cost}")


class Screen:
    """Shows events and answers. `file` gets the events, standard output the answers."""

    def __init__(self, file):
        self.file, self.lock, self.status = file, threading.RLock(), None
        self.color = not os.environ.get("NO_COLOR") and os.environ.get("TERM") != "dumb"

    def print(self, text, style: str = "", indent: int = 0, file=None) -> None:
        """Prints text, or a rich renderable, as it is and never as markup; plainly if rich fails."""
        file = file or self.file
        with self.lock:
            self.rest()
            try:
                self._draw(text, style, indent, file)
            except Exception:  # a fault in drawing must not cost the turn
                file.write(" " * indent + clean(str(text)) + "\n")
            file.flush()

    def _draw(self, text, style: str, indent: int, file) -> None:
        if isinstance(text, str) and not file.isatty():
            file.write("\n".join(" " * indent + line for line in clean(text).split("\n")) + "\n")
            return
        from rich.padding import Padding
        from rich.text import Text

        shown = Text(clean(text), style=style) if isinstance(text, str) else text
        self.rich(file).print(Padding(shown, (0, 0, 0, indent), expand=False))

    def rich(self, file):
        """A rich console on a file, as wide as the terminal is now."""
        from rich.console import Console

        color = "auto" if self.color and file.isatty() else None
        return Console(file=file, width=width(file), highlight=False, markup=False, emoji=False,
                       force_terminal=file.isatty(), color_system=color)

    def rest(self) -> None:
        """Ends the spinner, if one turns."""
        if self.status:
            self.status.stop()
            self.status = None

    def answer(self, text: str) -> None:
        """The agent's words on standard output: Markdown on a terminal, untouched in a pipe."""
        if not sys.stdout.isatty():
            sys.stdout.write(text + "\n")
            sys.stdout.flush()
            return
        try:
            from rich.markdown import Markdown

            self.print(Markdown(clean(text), hyperlinks=False), file=sys.stdout)
        except Exception:
            self.print(text, file=sys.stdout)

    def line(self, text: str, indent: int = 0) -> str:
        """The first line of a text, cut with … where it would leave the screen (counted in cells)."""
        first, *more = clean(text).split("\n")
        room = max(10, width(self.file) - indent - 1)
        if len(first) > room or not first.isascii():
            from rich.cells import cell_len, set_cell_size

            if cell_len(first) > room:
                return set_cell_size(first, room - 1).rstrip() + "…"
        return first + " …" * bool(more)

    def listen(self, event: dict) -> None:
        """The listener: one method per kind of event, others are not shown."""
        if show := getattr(self, f"on_{event['kind']}", None):
            show(event, 2 if event.get("agent", "main") == "main" else 6)

    def on_request(self, event: dict, indent: int) -> None:
        if self.color and self.file.isatty() and indent == 2:
            with self.lock:
                self.rest()
                self.status = self.rich(self.file).status("", spinner="dots")
                self.status.start()

    def on_reply(self, event: dict, indent: int) -> None:
        self.rest()
        text = core.text_of(event["content"]).strip()
        if text and any(block["type"] == "tool_use" for block in event["content"]):
            self.print(text, indent=indent)

    def on_tool_call(self, event: dict, indent: int) -> None:
        self.print(self.line(f"● {event['name']}  {summary(event['input'])}", indent), "bold", indent)

    def on_decision(self, event: dict, indent: int) -> None:
        if event["why"].startswith("always"):
            self.print(f"allowed, {event['why']}", "dim", indent + 2)

    def on_tool_result(self, event: dict, indent: int) -> None:
        text = core.text_of([block for block in core.as_blocks(event["content"]) if block["type"] == "text"])
        lines = text.rstrip().split("\n")
        shown = [self.line(line, indent + 2) for line in lines[:FOLDED_LINES]]
        if len(lines) > FOLDED_LINES:
            shown.append(f"… {len(lines) - FOLDED_LINES:,} more lines")
        self.print("\n".join(shown), "red" if event.get("is_error") else "dim", indent + 2)

    def on_notice(self, event: dict, indent: int) -> None:
        self.print(f"○ {event['text']}", "cyan", indent)

    def on_compaction(self, event: dict, indent: int) -> None:
        self.print(f"◇ {event['text']}", "cyan", indent)

    def on_stop(self, event: dict, indent: int) -> None:
        self.rest()
        if event["reason"] in STOPPED:
            self.print(f"■ {STOPPED[event['reason']]}", "yellow", indent)

    def on_error(self, event: dict, indent: int) -> None:
        self.print(f"✗ {event['text']}", "red", indent)


def summary(given: dict) -> str:
    """A call's input on one line: the first field's value, others by name."""
    parts = [value if isinstance(value, str) else json.dumps(value, ensure_ascii=False) for value in given.values()]
    return "  ".join(part if index == 0 else f"{name}={part}" for index, (name, part) in enumerate(zip(given, parts)))


def details(given: dict) -> str:
    """All that a person needs to decide on a call: the diff of an edit, or every field in full."""
    if {"old_text", "new_text"} <= given.keys():
        removed = [f"- {line}" for line in str(given["old_text"]).splitlines()]
        added = [f"+ {line}" for line in str(given["new_text"]).splitlines()]
        return "\n".join([str(given.get("path", "")), *removed, *added])
    return "\n".join(f"{name}: {value}" for name, value in given.items())


def trace_to(path: Path) -> Callable[[dict], None]:
    """A listener that writes each event as one line of JSON, at once."""
    file, lock = open(path, "w", encoding="utf-8"), threading.Lock()

    def write(event: dict) -> None:
        with lock:
            file.write(json.dumps({"v": TRACE_VERSION, **event}, ensure_ascii=False, default=str) + "\n")
            file.flush()

    return write
