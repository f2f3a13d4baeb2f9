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
SPEAKERS = ("green", "magenta", "blue", "yellow", "bright_cyan", "bright_red")
FOLDED_LINES = 6  # of a result on the screen; the model gets all of it
STOPPED = {
    "max_tokens": "the answer was cut at the limit of one reply and is not finished; say: go on",
    "model_context_window_exceeded": "the context window is full; /clear starts afresh, /compact (s06) shortens it",
    "refusal": "the model refused to answer",
    "empty": "the model gave no text",
    "max_turns": "the turn limit was reached before the work was done (--max-turns); say: go on",
    "repeated": "the same call gave the same result again and again, so the loop was ended",
}

# What acts on a terminal or cannot be seen: controls and escapes, half characters, marks of direction,
# line ends of Unicode, blanks and tags without width. A joiner, and a mark of how to draw it, is at
# home behind a letter or a picture that is not ASCII; a row of them could spell something.
UNSEEN = re.compile("[\x00-\x08\x0b-\x1f\x7f-\x9f\xad\u034f\u061c\u115f\u1160\u17b4\u17b5\u180b-\u180f\u200b\u200e\u200f"
                    "\u2028-\u202e\u2060-\u206f\u3164\ud800-\udfff\ufeff\uffa0\ufff9-\ufffb\U0001d173-\U0001d17a"
                    "\U000e0000-\U000e0fff]|(?<![^\x00-\x7f\u200c\u200d])[\u200c\u200d]"
                    "|(?<![^\x00-\x7f\u200c\u200d\ufe00-\ufe0f])[\ufe00-\ufe0f](?!\u20e3)")


def clean(text: str) -> str:
    """Text that cannot act on a terminal and hides nothing: ESC becomes ␛, the rest such as <U+202E>."""
    def visible(found: re.Match) -> str:
        code = ord(found[0])
        return chr(0x2400 + code) if code < 32 else f"<U+{code:04X}>"  # from 2400 on are their pictures

    return UNSEEN.sub(visible, text.replace("\r\n", "\n").expandtabs(4))


def to_json(value) -> str:
    """JSON on what every reader takes for one line, safe to look at: what `clean` would show is escaped."""
    text = json.dumps(value, ensure_ascii=False, default=str)
    return UNSEEN.sub(lambda found: json.dumps(found[0])[1:-1], text)


def one_line(text: str, limit: int = 200) -> str:
    """Text on one line that a terminal shows and UTF-8 can say, cut with … at a number of characters."""
    line = " ".join("".join(letter if letter.isprintable() else " " for letter in text).split())
    return line if len(line) <= limit else line[:limit - 1] + "…"


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
        usage = event["usage"]
        price = None if core.settings().offline else core.cost(event["model"], usage)  # playing costs nothing
        figures = {"replies": int(event["agent"] == "main"),
                   "in": core.prompt_tokens(usage), "out": usage.get("output_tokens") or 0,
                   "cached": usage.get("cache_read_input_tokens") or 0,
                   "written": usage.get("cache_creation_input_tokens") or 0,
                   "cost": price or 0.0, "unpriced": price is None}
        for counter in (self.total, self.turn):
            counter.update(figures)
        if figures["replies"]:
            self.replies += 1
            self.context, self.window = figures["in"] + figures["out"], event.get("window", 0)

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
        self.prompt = ""  # what stands on the last line while the user types, to be restored below a notice
        self.color = not os.environ.get("NO_COLOR") and os.environ.get("TERM") != "dumb"

    def print(self, text, style: str = "", indent: int = 0, file=None) -> None:
        """Prints text, or a rich renderable, as it is and never as markup; plainly if rich fails."""
        file = file or self.file
        with self.lock:
            turning = self.status
            self.rest()
            typed = sys.modules["readline"].get_line_buffer() if self.prompt and "readline" in sys.modules else ""
            file.write("\r\x1b[K" if self.prompt else "")
            try:
                self._draw(text, style, indent, file)
            except BrokenPipeError:
                self.file = open(os.devnull, "w")  # whoever read the events has left
                return
            except Exception:  # a fault in drawing must not cost the turn
                file.write(" " * indent + clean(str(text)) + "\n")
            file.write(self.prompt + clean(typed))
            file.flush()
            if turning:  # the model still works: that was a retry, or what another agent had to say
                self.status = turning
                turning.start()

    def _draw(self, text, style: str, indent: int, file) -> None:
        if isinstance(text, str) and not file.isatty():
            file.write("\n".join(" " * indent + line for line in clean(text).split("\n")) + "\n")
            return
        from rich.padding import Padding
        from rich.segment import Segments
        from rich.text import Text

        console, shown = self.rich(file), Text(clean(text), style=style) if isinstance(text, str) else text
        drawn = console.render(Padding(shown, (0, 0, 0, indent), expand=False))
        console.print(Segments(part._replace(text=clean(part.text)) for part in drawn))  # a table's cells, too

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
        """The agent's words on standard output: Markdown on a terminal, in a pipe just what the model wrote."""
        if not sys.stdout.isatty():
            sys.stdout.write(text + "\n")
            sys.stdout.flush()
            return
        try:
            from markdown_it import MarkdownIt
            from rich.markdown import Markdown

            shown = Markdown("", hyperlinks=False)  # its own parser drops <tags>, line ends and deep nesting
            parser = MarkdownIt("commonmark", {"html": False, "maxNesting": 100}).enable(["strikethrough", "table"])
            shown.parsed = parser.parse(clean(text))
            for inline in (child for token in shown.parsed for child in token.children or []):
                inline.type = "hardbreak" if inline.type == "softbreak" else inline.type
            self.print(shown, file=sys.stdout)
        except Exception:
            self.print(text, file=sys.stdout)

    def line(self, text: str, indent: int = 0, rows: int = 1) -> str:
        """The first line of a text, cut with … where it would need more rows of the screen (counted in cells)."""
        first, *more = clean(text).split("\n")
        room = max(10, rows * (width(self.file) - indent - 1))
        if len(first) > room or not first.isascii():
            from rich.cells import cell_len, set_cell_size

            if cell_len(first) > room:
                return set_cell_size(first, room - 1).rstrip() + "…"
        return first + " …" * bool(more)

    def listen(self, event: dict) -> None:
        """The listener: one method per kind of event, others are not shown; others than main are indented."""
        if show := getattr(self, f"on_{event['kind']}", None):
            show(event, 2 if event.get("agent", "main") == "main" else 6)

    def said_by(self, event: dict, text: str, style: str, indent: int, one_line: bool = False) -> None:
        """What an agent says; another than main is named, in its own colour. `one_line` cuts it to fit."""
        who = event.get("agent", "main").rpartition("/")[2]
        if one_line:
            text = self.line(text, indent if who == "main" else indent + len(who) + 1)
        if who == "main" or not self.file.isatty():
            self.print(text if who == "main" else f"{who} {text}", style, indent)
            return
        from rich.text import Text

        color = SPEAKERS[sum(map(ord, who)) % len(SPEAKERS)]
        self.print(Text.assemble((clean(who), color), " ", (clean(text), style)), indent=indent)

    def on_request(self, event: dict, indent: int) -> None:
        with self.lock:  # with the look at the prompt: a question may come up now
            if self.color and self.file.isatty() and indent == 2 and not self.prompt:
                self.rest()
                self.status = self.rich(self.file).status("", spinner="dots")
                self.status.start()

    def on_reply(self, event: dict, indent: int) -> None:
        self.rest()
        text = core.text_of(event["content"]).strip()
        if indent > 2 and text and not event["agent"].endswith("/compaction"):  # nobody else shows their words
            self.said_by(event, text, "", indent, one_line=True)
        elif text and any(block["type"] == "tool_use" for block in event["content"]):
            self.print(text, indent=indent)

    def on_tool_call(self, event: dict, indent: int) -> None:
        self.said_by(event, f"● {event['name']}  {summary(event['input'])}", "bold", indent, one_line=True)

    def on_decision(self, event: dict, indent: int) -> None:
        if event["why"].startswith("always"):
            self.print(f"allowed, {event['why']}", "dim", indent + 2)

    def on_tool_result(self, event: dict, indent: int) -> None:
        text = core.text_of([block for block in core.as_blocks(event["content"]) if block["type"] == "text"])
        lines = text.rstrip().split("\n")
        # why a call failed is worth three rows
        shown = [self.line(line, indent + 2, 1 + 2 * bool(event.get("is_error"))) for line in lines[:FOLDED_LINES]]
        if (more := len(lines) - FOLDED_LINES) > 0:
            shown.append(f"… {more:,} more lines" + ", with a gap" * ("bytes left out ...]" in text))
        self.print("\n".join(shown), "red" if event.get("is_error") else "dim", indent + 2)

    def on_notice(self, event: dict, indent: int) -> None:
        self.said_by(event, f"○ {event['text']}", "cyan", indent)

    def on_compaction(self, event: dict, indent: int) -> None:
        self.print(f"◇ {event['text']}", "cyan", indent)

    def on_stop(self, event: dict, indent: int) -> None:
        self.rest()
        if event["reason"] in STOPPED:
            self.said_by(event, f"■ {STOPPED[event['reason']]}", "yellow", indent)

    def on_error(self, event: dict, indent: int) -> None:
        self.said_by(event, f"✗ {event['text']}", "red", indent)


def summary(given: dict) -> str:
    """A call's input on one line: what it acts on, then the other fields by name, in the order they came."""
    subject = next((name for name in ("command", "pattern", "path", *given) if name in given), "")
    parts = {name: value if isinstance(value, str) else json.dumps(value, ensure_ascii=False)
             for name, value in given.items()}
    return "  ".join([parts.pop(subject, ""), *map("=".join, parts.items())])


def details(given: dict) -> str:
    """All that a person needs to decide on a call: every field in full, an edit as a diff.

    The further lines of a value are set in, so that none looks like another field. What may fill the
    screen ends with its beginning.
    """
    signs = {"old_text": "- ", "new_text": "+ "} if {"old_text", "new_text"} <= given.keys() else {}
    fields = [f"{name}: {value}".replace("\n", "\n  ") for name, value in given.items() if name not in signs]
    lines = sorted(fields, key=len, reverse=True)  # what is last stays on the screen
    lines += [sign + line for name, sign in signs.items() for line in str(given[name]).split("\n")]
    shown = "\n".join(lines)
    begins = f"\n({len(shown):,} characters, beginning with {shown[:60].splitlines()[0]})"
    return shown + begins * (len(shown) > 1_000 or shown.count("\n") > 15)


def context_report(agent, messages: list[dict], reported: int) -> str:
    """What fills the context window: its parts, the API's own count, the largest results."""
    # not by agent.request, which may compact, or take in mail
    parts = {"system": core.estimate_tokens(agent.system),
             "tools": core.estimate_tokens([tool.definition() for tool in agent.tools.values()]),
             "messages": core.estimate_tokens(messages)}
    total = sum(parts.values())
    names = {block["id"]: block["name"] for message in messages for block in core.as_blocks(message["content"])
             if block["type"] == "tool_use"}
    results = sorted(((core.estimate_tokens(block), names.get(block["tool_use_id"], "?"))
                      for _, _, block in core.results_in(messages)), reverse=True)[:3]
    by_api = f", {short(reported)} reported by the API for the last turn" if reported else ""
    lines = [f"{len(messages)} messages, about {short(total)} tokens of {short(agent.window)} "
             f"({total / agent.window:.1%}){by_api}",
             "  ".join(f"{name} {short(tokens)}" for name, tokens in parts.items())]
    largest = ", ".join(f"{name} about {short(tokens)}" for tokens, name in results)
    return "\n".join(lines + [f"largest results: {largest}"] * bool(largest))


def trace_to(path: Path) -> Callable[[dict], None]:
    """A listener that writes each event as one line of JSON, at once."""
    file, lock = open(path, "w", encoding="utf-8", errors="replace"), threading.RLock()

    def write(event: dict) -> None:
        with lock:
            try:
                file.write(to_json({"v": TRACE_VERSION, **event}) + "\n")
                file.flush()
            except OSError as error:
                core.listeners.remove(write)
                core.emit("error", agent="main", text=f"--trace {path}: {error.strerror}; the trace ends here")

    return write
