"""offline_script · how the stand-in plays a conversation: its language, its place, its words

Pure functions over one request: `compose(body)` is the reply. The command language is described
in offline.py. The place in a script is derived by walking the conversation from its start (the
Agenda) and never stored, so it survives restarts, retries and compaction.
"""

from __future__ import annotations

import itertools
import json
import re
from dataclasses import dataclass, field
from typing import Any, Iterable, Iterator

from offline_rules import ENCODE, blocks_of, estimate, no_constant, text_of

# ------------------------------------------------------------------ the command language

SEPARATORS = {";;": re.compile(r"\n|(?<!\S);;(?!\S)"),
              "++": re.compile(r"(?<!\S)\+\+(?!\S)"),
              "::": re.compile(r"(?<!\S)::(?!\S)")}
# What separators do not count in: a comment line, a quoted string, a JSON value. An apostrophe
# inside a word (don't) opens and closes nothing.
OPENING = re.compile(r"^[ \t]*#.*|(?<![\w\\])'|(?<=\s-\w)'|(?<!\\)[\"`]|(?<![^\s=])[\[{]", re.MULTILINE)
CLOSING = {'"': re.compile(r'(?:[^"\\]|\\.)*"', re.DOTALL), "`": re.compile(r"[^`]*`"),
           "'": re.compile(r".*?(?:'(?!\w)|(?<!\w)')", re.DOTALL)}
JSON_TYPES = {"integer": int, "number": (int, float), "boolean": bool, "array": list,
              "object": dict}
DECODER = json.JSONDecoder(strict=False, parse_constant=no_constant)


def read_json(text: str) -> Any:
    """The value that `text` is as a whole, or None when it is not JSON."""
    try:
        return DECODER.decode(text)
    except (ValueError, RecursionError):
        return None


@dataclass(frozen=True)
class Step:
    """One reply to come: `text` and `calls` (name, input); `source` is the words it came from."""

    source: str
    text: str = ""
    calls: tuple[tuple[str, dict], ...] = ()


def closing(text: str, start: int) -> int:
    """Where the comment, quote or JSON value that opens at `start` ends; `start` if it never does.

    A quote may span lines. When the next one of its kind looks like an opening itself, the
    first was never closed: it is a plain character, so that it cannot swallow later steps.
    """
    if text[start] in "[{":
        try:
            return DECODER.raw_decode(text, start)[1]
        except (ValueError, RecursionError):
            return start
    match = CLOSING[text[start]].match(text, start + 1)
    if not match:
        return start
    end = match.end()
    opens = text[end - 2].isspace() and text[end:end + 1].strip()
    return start if opens and "\n" in match[0] else end


def protected(text: str) -> bytearray:
    """One byte for each character of `text`: 1 where separators do not count."""
    mask, position = bytearray(len(text)), 0
    while match := OPENING.search(text, position):
        start, end = match.span()
        if end == start + 1 and text[start] != "#":
            end = closing(text, start)
        mask[start:end] = b"\1" * (end - start)
        position = max(end, start + 1)
    return mask


def split(text: str, sign: str) -> list[str]:
    """The stripped pieces of `text` between the separators `sign` that count."""
    pieces, start, mask = [], 0, protected(text)
    for match in SEPARATORS[sign].finditer(text):
        if not mask[match.start()]:
            pieces.append(text[start:match.start()].strip())
            start = match.end()
    return [*pieces, text[start:].strip()]


def unquote(text: str) -> str:
    value = read_json(text) if text[:1] == '"' else None
    if isinstance(value, str):
        return value
    whole = len(text) > 1 and text[0] in "\"'" and closing(text, 0) == len(text)
    return text[1:-1] if whole else text


def of_type(schema: Any, kind: str) -> bool:
    """Whether a field's schema (which may be just true) asks for values of a kind."""
    return isinstance(schema, dict) and schema.get("type") == kind


def convert(text: str, schema: dict) -> Any:
    """`text` as the type that `schema` asks for; left as it is when it cannot be converted."""
    kinds = schema.get("type") if isinstance(schema, dict) else None
    kind = next((k for k in kinds if k != "null"), "") if isinstance(kinds, list) else kinds
    plain = unquote(text)
    if kind not in JSON_TYPES:
        return plain
    value = read_json(text)
    if kind == "array" and not isinstance(value, list):
        return [convert(text, schema.get("items") or {})]
    right = isinstance(value, JSON_TYPES[kind]) and isinstance(value, bool) == (kind == "boolean")
    return value if right else plain


def key_values(text: str, fields: dict) -> dict | None:
    """The input that `path=a.py start_line=3` spells, or None when it is not of that form."""
    key = re.compile(rf"(?<!\S)({'|'.join(map(re.escape, fields))})=")
    if not fields or not key.match(text):
        return None
    mask = protected(text)
    keys = [match for match in key.finditer(text) if not mask[match.start()]]
    ends = [match.start() for match in keys[1:]] + [len(text)]
    return {match[1]: convert(text[match.end():end].strip(), fields[match[1]])
            for match, end in zip(keys, ends)}


def read_input(text: str, schema: dict) -> dict:
    """The tool input that the words after the tool's name stand for."""
    fields, required = schema.get("properties") or {}, schema.get("required") or []
    first = next((name for name in fields if name in required), next(iter(fields), None))
    value = read_json(text) if text[:1] == "{" else None
    if isinstance(value, dict):
        wants_object = first and of_type(fields[first], "object")
        return {first: value} if wants_object and not value.keys() & fields.keys() else value
    if not text or not first:
        return {}
    pairs, parts = key_values(text, fields), split(text, "::")
    if pairs or len(parts) == 1 or len(fields) == 1:
        return pairs or {first: convert(text, fields[first])}
    last = len(fields) - 1  # more parts than fields: the rest is the last field, untouched
    parts[last:] = [" :: ".join(parts[last:])] if parts[last:] else []
    return {name: convert(part, fields[name]) for name, part in zip(fields, parts)
            if part or name in required}


def read_call(words: str, tools: dict[str, dict] | None) -> tuple[str, dict] | None:
    """The call (name, input) that `words` stand for, or None.

    `tools` maps names to input schemas; None means that they are not known (a request for a
    summary has none): then each word in lower case may be a tool and its input stays raw.
    """
    name, rest = [*words.split(None, 1), "", ""][:2]
    if name == "call":
        name, rest = [*rest.split(None, 1), "", ""][:2]
        value = read_json(rest) if rest else {}
        return (name, value) if name and isinstance(value, dict) else None
    if tools is None:
        return (name, {"": rest} if rest else {}) if re.match(r"[a-z][\w-]*$", name) else None
    return (name, read_input(rest, tools[name])) if name in tools else None


def read_step(source: str, tools: dict[str, dict] | None) -> Step | None:
    """The step that `source` spells, or None when a part of it cannot be played."""
    texts, calls = [], []
    for part in split(source, "++"):
        if re.match(r"say\s+\S", part):
            texts.append(unquote(part[4:].strip()))
        elif call := read_call(part, tools):
            calls.append(call)
        else:
            return None
    return Step(source, "\n".join(texts), tuple(calls)) if calls or "".join(texts).strip() else None


def sources(text: str) -> list[str]:
    """The words of each step in `text`, comments left out."""
    return [piece for piece in split(text, ";;") if piece and piece[0] != "#"]


# ------------------------------------------------------------------ the agenda

NOTICE = re.compile(r"<(notification|reminder|system-reminder)\b[^>]*>.*?(?:</\1\s*>|\Z)",
                    re.DOTALL | re.IGNORECASE)
MAIL = "<inbox>"
TAG = r"<([A-Za-z][\w-]*)(?:\s[^<>]*)?>(.*?)</\1\s*>"
WRAPPED = re.compile(TAG, re.DOTALL)
NESTED = re.compile(r"^[ \t]*" + TAG, re.DOTALL | re.MULTILINE)
STEPS = re.compile(r"<steps>(.*?)</steps>", re.DOTALL)
CONTINUE = re.compile(r"(please\s+)?(continue|go on|carry on)( with the work)?\W*", re.IGNORECASE)
GREETING = "I am the stand-in model: I play commands, I do not think."


def steps_among_prose(text: str, tools: dict | None) -> Iterator[Step]:
    """The playable steps in `text`; other lines are prose. Tags that open a line are entered."""
    position, mask = 0, protected(text)
    tags = (match for match in NESTED.finditer(text) if not mask[match.start()])
    for match in [*tags, None]:
        for source in sources(text[position:match.start() if match else len(text)]):
            if step := read_step(source, tools):
                yield step
            elif "\n" in source:  # prose with a quote that ran over several lines
                yield from steps_among_prose(source.split("\n", 1)[1], tools)
        if match:
            yield from steps_among_prose(match[2], tools)
            position = match.end()


@dataclass
class Agenda:
    """What is still to be played, derived from the conversation alone.

    `calls` are what was run since the newest prompt, by call id, and `results` all there were;
    `puzzle` is a prompt that could not be played.
    """

    tools: dict[str, dict] | None
    steps: list[Step] = field(default_factory=list)
    calls: dict[str, dict] = field(default_factory=dict)
    results: dict[str, dict] = field(default_factory=dict)
    puzzle: str = ""
    in_step: bool = True  # False after a summary until its first step is seen: tails may overlap

    def replace(self, steps: Iterable[Step], puzzle: str = "", resumed: bool = False) -> None:
        """Put steps in the place of all others; `resumed` if they come from a summary."""
        self.steps, self.calls, self.puzzle = [], {}, puzzle
        self.in_step = not resumed
        self.extend(steps)

    def extend(self, steps: Iterable[Step]) -> None:
        """Append; a text that is followed by more is said with it, for it would end the turn."""
        for step in steps:
            if self.steps and not self.steps[-1].calls:
                said = self.steps.pop()
                step = Step(f"{said.source}\n{step.source}",
                            f"{said.text}\n{step.text}".strip(), step.calls)
            self.steps.append(step)

    def hear(self, blocks: list[dict]) -> None:
        """Take in a user message."""
        results = {b.get("tool_use_id"): b for b in blocks if b.get("type") == "tool_result"}
        self.results.update(results)
        texts = [NOTICE.sub("", b.get("text", "")) for b in blocks if b.get("type") == "text"]
        for kept in STEPS.findall("\n".join(texts)):
            self.replace(steps_among_prose(kept, self.tools), resumed=True)
        texts = [text.strip() for text in texts if text.strip() and not STEPS.search(text)]
        mail = [text for text in texts if text.startswith(MAIL)]  # comes beside a prompt, not in its place
        prompt = "\n".join(text for text in texts if text not in mail)
        for number, words in enumerate(filter(None, [prompt, *mail])):
            self.obey(words, steering=bool(results) or number > 0)

    def obey(self, prompt: str, steering: bool) -> None:
        """Put a prompt on the agenda; `steering` is one that came beside tool results."""
        if CONTINUE.fullmatch(prompt):
            return
        words = sources(prompt)
        steps = [read_step(source, self.tools) for source in words]
        plain = bool(steps and steps[0])  # what starts with a command is one, tags in it or not
        if plain and all(steps):
            self.replace(steps)
        elif not plain and WRAPPED.search(prompt):
            self.obey_wrapped(prompt, steering)
        else:
            unknown = (source for source, step in zip(words, steps) if not step)
            if not steering:
                self.replace([], puzzle=next(unknown, prompt))

    def obey_wrapped(self, prompt: str, steering: bool) -> None:
        """Add the steps that a prompt holds in tags."""
        found = [step for match in WRAPPED.finditer(prompt)
                 for step in steps_among_prose(match[2], self.tools)]
        if not steering:
            self.calls, self.puzzle = {}, "" if found or prompt.startswith(MAIL) else prompt
        self.extend(found)

    def follow(self, blocks: list[dict]) -> None:
        """Take in an assistant message: it plays the next step, or nothing."""
        uses = [block for block in blocks if block.get("type") == "tool_use"]
        self.calls.update((use.get("id"), use) for use in uses)
        text = text_of(blocks).strip()
        if self.tools is None and text.startswith(GREETING):
            self.steps.clear()
        # Without the tools a line of prose may look like a step: look for the one played.
        reach = self.steps if self.tools is None else self.steps[:1]
        for number, step in enumerate(reach, 1):
            if self.plays(uses, step) if uses else not step.calls and step.text.strip() == text:
                del self.steps[:number]
                self.in_step = True
                return
        if uses and self.steps and self.in_step and not self.is_cut(uses, self.steps[0]):
            del self.steps[0]

    def plays(self, uses: list[dict], step: Step) -> bool:
        if self.is_cut(uses, step):
            return False
        played = [(use.get("name"), use.get("input")) for use in uses]
        if self.tools is None:
            return [name for name, _ in played] == [name for name, _ in step.calls]
        return played == list(step.calls)

    def is_cut(self, uses: list[dict], step: Step) -> bool:
        """Whether an input was lost on the way (max_tokens): such a call was not run."""
        return any(given and not use.get("input") for use, (_, given) in zip(uses, step.calls))


def walk(messages: list[dict], tools: dict[str, dict] | None) -> Agenda:
    """The agenda at the end of `messages`."""
    agenda = Agenda(tools)
    for message in messages:
        take = agenda.follow if message["role"] == "assistant" else agenda.hear
        take(blocks_of(message.get("content")))
    return agenda


# ------------------------------------------------------------------ what it answers

HEADINGS = ("User prompts:", "Files:", "Done:", "Steps not yet played:")
SUMMARY = re.compile(r"summar|compact", re.IGNORECASE)
JSON_START = re.compile(r"(?:^|>)\s*(?=[\[{])", re.MULTILINE)
SPOKEN = re.compile(r"^\W*(user|assistant)\W*:\s*(.*?)(?=^\W*(?:user|assistant|tool\w*)\W*:|</|\Z)",
                    re.DOTALL | re.IGNORECASE | re.MULTILINE)


@dataclass
class Reply:
    """A message without its envelope. `raw` holds tool input as text where it is not JSON."""

    content: list[dict]
    stop_reason: str = "end_turn"
    stop_details: dict | None = None
    raw: dict[int, str] = field(default_factory=dict)


def clip(text: str, size: int) -> str:
    line = " ".join(text.split())
    return line if len(line) <= size else line[:size - 1] + "…"


def input_of(call: dict) -> dict:
    given = call.get("input")
    return given if isinstance(given, dict) else {}


def outcome(call: dict, result: dict | None) -> str:
    """One line: what was called and the first line of what came back."""
    lines = text_of(blocks_of((result or {}).get("content"))).split("\n")
    first = next((line for line in lines if line.strip()), "no text" if result else "no result")
    error = "error: " if (result or {}).get("is_error") else ""
    words = " ".join([str(call.get("name")), *map(str, input_of(call).values())])
    line = f"- {clip(words, 40)}: {error}{clip(first, 50)}"
    # it may come back in a mail or a summary, where it must be no step and no tag
    return line.replace(";;", "; ;").replace("<", "&lt;")


def report(agenda: Agenda) -> str:
    calls = list(agenda.calls.items())
    if not calls:
        return "Nothing is left to play."
    lines = [outcome(call, agenda.results.get(key)) for key, call in calls[-5:]]
    earlier = f" The last {len(lines)}:" if len(calls) > len(lines) else ""
    return "\n".join([f"Played {len(calls)} call{'s' * (len(calls) > 1)}.{earlier}", *lines])


def example(name: str, schema: dict) -> str:
    """A line that calls the tool `name`, made from its schema."""
    fields, required = schema.get("properties") or {}, schema.get("required") or []
    samples = {"integer": "1", "number": "1", "boolean": "true", "object": "{}", "array": "[]"}
    kinds = {key: next((kind for kind in samples if of_type(fields[key], kind)), "") for key in fields}
    parts = [samples.get(kinds[key], key.upper()) if key in required else "" for key in fields]
    filled = [part for part in parts if part]
    return f"{name} {filled[0] if len(filled) == 1 else ' :: '.join(parts).rstrip(' :')}".strip()


def friendly(puzzle: str, tools: dict[str, dict]) -> str:
    lines = [f'{GREETING} I could not play: "{clip(puzzle, 80)}". This request offers:',
             *(f"  {example(name, schema)}" for name, schema in tools.items()), "  say TEXT",
             "One step a line, or several with ' ;; ' between; ' ++ ' joins calls in one reply.",
             "For a real model put ANTHROPIC_API_KEY=... into .env and start again."]
    return "\n".join(lines)


def transcript(text: str) -> list[dict]:
    """The messages in a dump: a JSON list, JSON lines, or lines such as `user: ...`."""
    found, position = [], 0
    while match := JSON_START.search(text, position):
        try:
            value, position = DECODER.raw_decode(text, match.end())
        except (ValueError, RecursionError):
            position = match.end() + 1
            continue
        items = value if isinstance(value, list) else [value]
        found += [item for item in items if isinstance(item, dict) and "role" in item and all(
            isinstance(block, dict) for block in blocks_of(item.get("content")))]
    spoken = [{"role": role.lower(), "content": words} for role, words in SPOKEN.findall(text)]
    return found or spoken or [{"role": "user", "content": "".join(
        match[0] for match in STEPS.finditer(text))}]


def earlier_lines(text: str) -> Iterator[list[str]]:
    """The lines under each heading of a summary that `text` holds."""
    for heading in HEADINGS[:-1]:
        after = text.partition(heading + "\n")[2].split("\n")
        yield list(itertools.takewhile(lambda line: line.startswith("- "), after))


def summary(messages: list[dict], limit: int) -> str:
    """An extract of the conversation; its <steps> block is what walk() goes on from.

    When it is longer than `limit` tokens the lines before that block are cut, not the block.
    """
    *talk, last = messages
    asked = blocks_of(last["content"])
    results = [block for block in asked if block["type"] == "tool_result"]
    talk = [*talk, {**last, "content": results}] if talk else transcript(text_of(asked))
    agenda, calls = walk(talk, None), {}
    prompts, files, done = [], [], []
    for message in talk:
        blocks = blocks_of(message.get("content"))
        words = NOTICE.sub("", text_of(blocks)) if message["role"] == "user" else ""
        if STEPS.search(words):
            for lines, earlier in zip((prompts, files, done), earlier_lines(words)):
                lines += earlier
        elif words.strip():
            prompts.append(f"- {clip(words, 200)}")
        calls.update((b.get("id"), b) for b in blocks if b.get("type") == "tool_use")
    for key, call in calls.items():
        files += [f"- {value}" for name, value in input_of(call).items()
                  if re.search("path|file", name)]
        done.append(outcome(call, agenda.results.get(key)))
    sections = zip(HEADINGS, (prompts[-20:], sorted({*files})[:50], done[-20:]))
    extract = "".join(f"{line}\n" for heading, lines in sections for line in (heading, *lines))
    extract = extract.replace("<", "&lt;")
    steps = "\n".join([HEADINGS[-1], "<steps>", *(one.source for one in agenda.steps), "</steps>"])
    room = max(0, 4 * limit - len(steps.encode("utf-8", "replace")))
    return extract.encode("utf-8", "replace")[:room].decode("utf-8", "ignore") + steps


def compose(body: dict) -> Reply:
    """The reply to a request that keeps the rules, faults aside."""
    messages, limit = body["messages"], body["max_tokens"]
    tools = {tool.get("name"): tool.get("input_schema") or {} for tool in body.get("tools") or []}
    if limit == 0:  # a cache pre-warm
        return Reply([], "max_tokens")
    ask = text_of(blocks_of(messages[-1]["content"])) + text_of(blocks_of(body.get("system")))
    if not tools and SUMMARY.search(ask):
        return fit(Reply([{"type": "text", "text": summary(messages, limit)}]), limit)
    agenda = walk(messages, tools)
    step = agenda.steps[0] if agenda.steps else None
    if step is None or step.calls and (body.get("tool_choice") or {}).get("type") == "none":
        puzzle = agenda.puzzle and not agenda.calls
        step = Step("", friendly(agenda.puzzle, tools) if puzzle else report(agenda))
    content = [{"type": "text", "text": step.text}] if step.text else []
    content += [{"type": "tool_use", "id": "", "name": name, "input": given}
                for name, given in step.calls]
    return fit(Reply(content, "tool_use" if step.calls else "end_turn"), limit)


def output_tokens(content: list[dict]) -> int:
    return sum(estimate(b.get("text") or ENCODE(b.get("input", ""))) for b in content)


def fit(reply: Reply, limit: int) -> Reply:
    over = output_tokens(reply.content) > limit
    return cut_short(reply, 4 * limit) if over else reply


def cut_short(reply: Reply, size: int | None = None) -> Reply:
    """The reply as max_tokens leaves it: its last block broken off, after `size` bytes.

    Of a tool call the API keeps the name and an empty input; a stream has shown a fragment.
    """
    *before, last = reply.content
    if last["type"] == "tool_use":
        given = ENCODE(last["input"])
        raw = {len(before): given[:min(size or len(given), len(given) // 2)]}
        return Reply([*before, {**last, "input": {}}], "max_tokens", raw=raw)
    data = last["text"].encode("utf-8", "replace")
    size = size or (len(data) + 1) // 2
    size += data[size - 1:size].isspace()  # in mid-word
    text = data[:size].decode("utf-8", "ignore") or last["text"]
    return Reply([*before, {**last, "text": text}], "max_tokens")
