"""core · what every session stands on: the model's client, the base tools, the gate, dispatch, events

Everything on the wire is a plain dict in the shape of the Messages API, so a conversation can be
printed, saved as JSON and sent back as it is:

    {"role": "user", "content": "list the files"}                       a prompt
    {"role": "assistant", "content": [                                  a reply that asks for a tool
        {"type": "text", "text": "I will look."},
        {"type": "tool_use", "id": "toolu_1", "name": "bash", "input": {"command": "ls"}}]}
    {"role": "user", "content": [                                       its result, by the call's id
        {"type": "tool_result", "tool_use_id": "toolu_1", "content": "core.py"}]}

What the API demands of the sequence (platform.claude.com/docs, "Handle tool calls"): the message
after a reply with tool calls answers each call exactly once, results before any text; no text is
blank; the first message is the user's.

    events       emit(kind, ...) and whoever listens: the console, a trace file, a test
    settings     environment and .env; models with their window and price
    client       one SDK client, bounded and visible retries (trouble.py), ModelError in plain words
    messages     a reply as plain dicts, and what may be asked of a conversation
    tools        Tool, validation, and dispatch: the one place where an exception becomes a result
    permissions  decide (pure) and approve (asks)
    toolboxes    bash alone, or all seven base tools, over one Workspace (workspace.py)

Importing this file does nothing: no client, no environment, no file, no output.
"""

import fnmatch
import glob
import inspect
import itertools
import json
import logging
import operator
import os
import re
import shlex
import threading
import time
import types
import typing
import uuid
import weakref
from collections.abc import Callable
from dataclasses import dataclass, field, replace
from pathlib import Path

from trouble import LONGEST_WAIT, explain, may_pass, retry_wait, too_long, what_happened
from workspace import OUTPUT_LIMIT, HeadTail, Interrupted, Shell, ToolError, Workspace, atomic_write, end_shells, locked

# passed on from workspace: a session imports core alone
__all__ = ["HeadTail", "Interrupted", "Shell", "ToolError", "Workspace", "atomic_write", "end_shells", "locked"]

# ---------------------------------------------------------------------------------- events

listeners: list[Callable[[dict], None]] = []


def emit(kind: str, **data) -> None:
    """Tells every listener what happened, as one dict with `kind`, `time` (Unix seconds) and data.

    Kinds: user, request, reply, tool_call, decision, tool_result, notice, compaction, stop, error.
    A listener that fails is reported to the log and never breaks the turn.
    """
    event = {"kind": kind, "time": time.time(), **data}
    if "agent" in data:  # agents are named like paths: main/sub-1 was started by main
        event["parent"] = data["agent"].rpartition("/")[0]
    for listener in list(listeners):
        try:
            listener(event)
        except Exception as error:
            logging.getLogger("core").error("a listener failed on %s: %r", kind, error)


# ---------------------------------------------------------------------------------- settings

DEFAULT_MODEL = "claude-sonnet-5-5"
STAND_IN_MODEL = "stand-in"
WINDOW = "[1-9][0-9]{3,9}"  # less than 1,000 tokens would not even hold the tools


@dataclass(frozen=True)
class Settings:
    """Where the model is. Without a key and without a base URL it is the stand-in (`offline`)."""

    api_key: str = ""
    auth_token: str = ""
    base_url: str = ""
    model: str = DEFAULT_MODEL
    timeout_ms: str = "600000"  # of silence, then a request is sent again; as given, client() checks it
    context_window: str = ""  # tokens, of a model that MODELS does not know; as given, client() checks it

    @property
    def window(self) -> int:
        return int(self.context_window) if re.fullmatch(WINDOW, self.context_window) else ModelInfo.window

    @property
    def offline(self) -> bool:
        return not (self.api_key or self.auth_token or self.base_url)

    @property
    def caching(self) -> dict:
        """The API's automatic prompt caching; other back ends may not know the field."""
        foreign = self.base_url and not self.base_url.endswith("anthropic.com")
        return {} if foreign else {"cache_control": {"type": "ephemeral"}}


def settings() -> Settings:
    """Reads the environment. A base URL is wanted without /v1/messages, which the SDK adds by itself."""
    value = {name: os.environ.get(name, "").strip() for name in (
        "ANTHROPIC_API_KEY", "ANTHROPIC_AUTH_TOKEN", "ANTHROPIC_BASE_URL", "MODEL_ID", "ANTHROPIC_MODEL",
        "API_TIMEOUT_MS", "CONTEXT_WINDOW")}
    found = Settings(value["ANTHROPIC_API_KEY"], value["ANTHROPIC_AUTH_TOKEN"],
                     value["ANTHROPIC_BASE_URL"].rstrip("/").removesuffix("/messages").removesuffix("/v1"),
                     timeout_ms=value["API_TIMEOUT_MS"] or Settings.timeout_ms,
                     context_window=value["CONTEXT_WINDOW"])
    default = STAND_IN_MODEL if found.offline else DEFAULT_MODEL
    return replace(found, model=value["MODEL_ID"] or value["ANTHROPIC_MODEL"] or default)


def load_env_file() -> None:
    """Reads the `.env` beside this file; what is already in the environment wins.

    Only that one: a `.env` in a workspace could point the key at somebody else's server.
    """
    from dotenv import load_dotenv

    path = Path(__file__).resolve().parent / ".env"
    try:
        load_dotenv(path, override=False, encoding="utf-8-sig")
    except UnicodeDecodeError:  # PowerShell's > writes UTF-16
        raise SystemExit(f"{path} is not UTF-8 text: save it as UTF-8") from None


@dataclass(frozen=True)
class ModelInfo:
    """Context window in tokens; US dollars per million tokens in and out, None when unknown."""

    window: int = 200_000
    price_in: float | None = None
    price_out: float | None = None


# platform.claude.com/docs, models overview and prompt caching, read on 2026-11-29
MODELS = {
    "claude-fable-5-2": ModelInfo(1_000_000, 8, 40),
    "claude-opus-5-5": ModelInfo(1_000_000, 4, 20),
    "claude-sonnet-5-5": ModelInfo(1_000_000, 2, 10),
    "claude-haiku-5-5": ModelInfo(1_000_000),  # its price depends on the length of the prompt
    "claude-haiku-4-5": ModelInfo(200_000, 1, 5),
}
IMAGE_TOKENS = 1_600  # about what the API counts for a picture as large as it takes without shrinking


def model_info(model: str) -> ModelInfo:
    """Window and price of a model, by its id or the id with a date behind it; CONTEXT_WINDOW for others.

    The stand-in plays models with a small window, for lessons: stand-in-32k has 32,000 tokens.
    """
    small = re.fullmatch(rf"{STAND_IN_MODEL}-(\d+)k", model)
    other = ModelInfo(int(small[1]) * 1000 if small else settings().window)
    return next((info for name, info in MODELS.items() if model.startswith(name)), other)


def prompt_tokens(usage: dict) -> int:
    """Size of a prompt in tokens: what was read from cache and written to it counts too."""
    return sum(usage.get(key) or 0 for key in (
        "input_tokens", "cache_creation_input_tokens", "cache_read_input_tokens"))


def cost(model: str, usage: dict) -> float | None:
    """US dollars for one reply; cache reads cost 0.1 of the input price, writes 1.25 (1 h: 2)."""
    info = model_info(model)
    if info.price_in is None:
        return None
    hour = (usage.get("cache_creation") or {}).get("ephemeral_1h_input_tokens") or 0
    written = usage.get("cache_creation_input_tokens") or 0
    paid = ((usage.get("input_tokens") or 0) + 1.25 * (written - hour) + 2 * hour
            + 0.1 * (usage.get("cache_read_input_tokens") or 0))
    return (paid * info.price_in + (usage.get("output_tokens") or 0) * info.price_out) / 1e6


def estimate_tokens(value) -> int:
    """A rough count for what has not been sent yet: one token per four characters of JSON.

    The bytes of an image or a PDF count as IMAGE_TOKENS, whatever their length.
    """
    text = json.dumps(value, ensure_ascii=False)
    media = re.findall(r'"data": "[A-Za-z0-9+/=]{1000,}"', text) if '"base64"' in text else []
    return (len(text) - sum(map(len, media))) // 4 + IMAGE_TOKENS * len(media)


# ---------------------------------------------------------------------------------- client

RETRIES = 4  # after the first attempt; waits of 0.5, 1, 2 and 4 s, or what retry-after says
_clients: dict[Settings, object] = {}
_client_lock = threading.Lock()


class ModelError(Exception):
    """The model could not be asked. Its text is one line: what happened and what to do."""

    def __init__(self, text: str, too_long: bool = False):
        super().__init__(text)
        self.too_long = too_long  # the conversation is larger than the context window


def client():
    """The SDK's client for the present settings, built on first use; safe to call from threads."""
    found = replace(settings(), model="")
    with _client_lock:
        if found not in _clients:
            _clients.clear()
            _clients[found] = _build_client(found)
        return _clients[found]


def _build_client(found: Settings):
    import anthropic

    if not re.fullmatch("[1-9][0-9]{0,9}", found.timeout_ms):
        raise ValueError(f"API_TIMEOUT_MS is {found.timeout_ms!r}: "
                         "give a number of milliseconds, such as 600000")
    if not re.fullmatch(f"({WINDOW})?", found.context_window):
        raise ValueError(f"CONTEXT_WINDOW is {found.context_window!r}: "
                         "give a number of tokens, 1000 or more, such as 32768")
    if not re.fullmatch("[ -~]*", found.api_key + found.auth_token):  # nobody below may say it with the key in it
        raise ValueError("the key holds a line break or a character that no header can carry: "
                         "check ANTHROPIC_API_KEY and ANTHROPIC_AUTH_TOKEN in the environment or in .env")
    if found.offline:
        import offline

        found = replace(found, api_key="stand-in", base_url=offline.start().url)
    elif not (found.api_key or found.auth_token):
        found = replace(found, api_key="none")  # local servers take any key
    http = _http_client(found.base_url)
    made = anthropic.Anthropic(
        api_key=found.api_key or None, auth_token=None if found.api_key else found.auth_token,
        base_url=found.base_url or "https://api.anthropic.com", http_client=http,
        timeout=anthropic.Timeout(int(found.timeout_ms) / 1000, connect=5.0),
        max_retries=0)  # retries are ours (call_model), because the SDK's are silent
    weakref.finalize(made, http.close).atexit = False  # at the end of the program it may still be in use
    return made


def _http_client(base_url: str):
    """What carries the requests. The SDK's own complains with a traceback when Ctrl-C leaves it half made.

    To this machine no proxy of the environment leads, and no TLS: such a context trusts nobody, and
    is made without reading certificates.
    """
    import ssl

    import anthropic

    local = re.match(r"http://(localhost|127\.[0-9.]+|\[::1\])([:/]|$)", base_url, re.IGNORECASE)
    plain = {"trust_env": False, "verify": ssl.SSLContext(ssl.PROTOCOL_TLS_CLIENT)} if local else {}
    try:
        return anthropic.DefaultHttpxClient(**plain)
    except (ImportError, OSError, ValueError) as error:  # no SOCKS package; no such file; no such kind of proxy
        raise ValueError(f"the network's settings cannot be used ({error}): "
                         "check ALL_PROXY, HTTPS_PROXY and SSL_CERT_FILE in the environment") from error


def call_model(attempt: Callable[[], object], agent: str = "main") -> dict:
    """Runs one API call with bounded retries and returns its reply as a plain dict.

    Each wait is announced as a `notice` of the agent. Raises ModelError when the last attempt
    failed, or at once when trying again cannot help. A body cut on its way surfaces as an error of
    the HTTP library, not of the SDK; nothing of the turn was kept, so it is safe to ask again.
    """
    import anthropic
    import httpx2  # the SDK's HTTP library

    # the SDK's assertion: a stream that ended before it held a message
    failures = (anthropic.AnthropicError, httpx2.HTTPError, httpx2.InvalidURL, ValueError, AssertionError)
    for retry in itertools.count():
        try:
            return plain_reply(attempt())
        except failures as error:
            wait = retry_wait(error, retry)
            if retry == RETRIES or wait > LONGEST_WAIT or not may_pass(error):
                raise ModelError(explain(error), too_long(error)) from error
            again = f"trying again in {wait:.1f} s ({retry + 1} of {RETRIES})"
            emit("notice", agent=agent, text=f"{what_happened(error)}; {again}")
            time.sleep(wait)


# ---------------------------------------------------------------------------------- messages

REPLY = {"type": "object", "required": ["content"], "properties": {  # what is relied on; a schema for `problems`
    "content": {"type": ["array", "string", "null"], "items": {"properties": {
        "type": {"type": "string"}, "text": {"type": ["string", "null"]}}}},
    "stop_reason": {"type": ["string", "null"]}, "usage": {"type": ["object", "null"]}}}


def plain_reply(message) -> dict:
    """An SDK Message as a dict {content, stop_reason, usage}, ready to be stored and sent back.

    Blocks keep what the API sent, signatures included, without null-only fields; blank text is
    dropped because the API refuses it in a request. Raises ValueError if it is no message.
    """
    reply = sendable(message.to_dict(mode="json", warnings=False) if hasattr(message, "to_dict") else {})
    if found := problems(reply, REPLY):
        what = f"{'; '.join(found)}: {reply}"[:200] if reply else "no JSON"
        raise ValueError(f"the server's answer is not a message of the Messages API: {what}")
    content = []
    for block in as_blocks(reply.get("content") or []):
        kind = block.get("type") if isinstance(block, dict) else None
        blank = kind == "text" and not (block.get("text") or "").strip()
        if kind and not blank:
            kept = {"type": kind} | {key: value for key, value in block.items() if value is not None}
            content.append(_readable_call(kept) if kind == "tool_use" else kept)
    return {"content": content, "stop_reason": reply.get("stop_reason"), "usage": reply.get("usage") or {}}


def _readable_call(block: dict) -> dict:
    """A tool call with a dict as input, a name the API accepts, an id unique in the conversation.

    Some back ends send JSON text as input, whole or broken; some number the calls of each reply
    from 0, or use characters that the API refuses once the conversation goes there.
    """
    given = block.get("input") or "{}"
    if isinstance(given, str):
        try:
            given = sendable(json.loads(given))
        except ValueError:
            pass  # said to the model by check_input
    given = given if isinstance(given, dict) else {"invalid_json": str(given)}
    own = re.fullmatch(r"toolu_[A-Za-z0-9_-]{16,}", str(block.get("id")))  # a shorter one is a counter
    name = re.sub(r"[^A-Za-z0-9_-]", "_", str(block.get("name") or "unnamed"))[:64]
    return {**block, "id": own[0] if own else f"toolu_{uuid.uuid4().hex}", "name": name, "input": given}


def sendable(value):
    """A JSON value that can be sent: half a surrogate pair becomes `?`; NaN and infinity are a ValueError."""
    return json.loads(json.dumps(value, ensure_ascii=False, allow_nan=False).encode("utf-8", "replace"))


def text_of(content: str | list[dict]) -> str:
    """The text of a message's content, its text blocks joined by blank lines."""
    if isinstance(content, str):
        return content
    return "\n\n".join(block["text"] for block in content if block["type"] == "text")


def has_results(message: dict) -> bool:
    """Whether a message answers tool calls; the API wants results before anything else in it."""
    content = message["content"]  # asked of each message before each turn, so it makes no blocks of a text
    return message["role"] == "user" and not isinstance(content, str) and content[0]["type"] == "tool_result"


def results_in(messages: list[dict]) -> list[tuple[list, int, dict]]:
    """(content, index, block) of each tool result; putting another block at content[index] replaces it."""
    return [(m["content"], index, block) for m in messages if has_results(m)
            for index, block in enumerate(m["content"]) if block["type"] == "tool_result"]


def merge_roles(messages: list[dict]) -> list[dict]:
    """The same conversation with neighbours of equal role merged.

    After an interrupt or a failed call two user messages follow each other. The API merges them;
    the chat templates of many local servers refuse them.
    """
    roles = [message["role"] for message in messages]
    if not any(map(operator.eq, roles, roles[1:])):
        return messages
    merged: list[dict] = []
    for message in messages:
        if merged and merged[-1]["role"] == message["role"]:
            both = [block for part in (merged[-1], message) for block in as_blocks(part["content"])]
            merged[-1] = {**message, "content": both}
        else:
            merged.append(message)
    return merged


def as_blocks(content: str | list[dict]) -> list[dict]:
    """Content as a list of blocks."""
    return [{"type": "text", "text": content}] if isinstance(content, str) else content


# ---------------------------------------------------------------------------------- tools

JSON_TYPES = {str: "string", int: "integer", float: "number", bool: "boolean", list: "array", dict: "object"}


@dataclass(frozen=True)
class Tool:
    """What the model may call: `run(**input)` returns text (or a list of content blocks)."""

    name: str
    description: str
    input_schema: dict
    run: Callable[..., str | list]
    read_only: bool = False

    @classmethod
    def of(cls, function: Callable, read_only: bool = False, input_schema: dict | None = None) -> "Tool":
        """A tool from a function: its name, docstring and annotated parameters describe it."""
        fields = list(inspect.signature(function, eval_str=True).parameters.values())
        if not input_schema and (bare := [f.name for f in fields if f.annotation is f.empty]):
            raise TypeError(f"{function.__name__}: annotate {', '.join(bare)}; the model needs the type")
        schema = input_schema or {
            "type": "object",
            "properties": {f.name: field_schema(f.annotation) for f in fields},
            "required": [f.name for f in fields if f.default is f.empty],
            "additionalProperties": False}
        return cls(function.__name__, inspect.getdoc(function) or "", schema, function, read_only)

    def definition(self) -> dict:
        """The tool as the API wants it in a request."""
        return {"name": self.name, "description": self.description, "input_schema": self.input_schema}


def field_schema(annotation) -> dict:
    """The JSON schema of an annotation such as str, int | None, list[str] or Literal["a", "b"]."""
    origin, inner = typing.get_origin(annotation) or annotation, typing.get_args(annotation)
    if origin in (types.UnionType, typing.Union):  # None means that it may be left out
        return field_schema(next(kind for kind in inner if kind is not type(None)))
    if origin is typing.Literal:
        return {"type": JSON_TYPES[type(inner[0])], "enum": list(inner)}
    items = {"items": field_schema(inner[0])} if origin is list and inner else {}
    return {"type": JSON_TYPES[origin], **items}


def registry(*tools: Tool) -> dict[str, Tool]:
    """Tools by name, in the order given."""
    return {tool.name: tool for tool in tools}


def problems(value, schema: dict, name: str = "input") -> list[str]:
    """Everything that is wrong with a value, in words; empty when it fits the JSON schema.

    Covers what tool schemas use: type, enum, properties, required, additionalProperties, items.
    """
    if not isinstance(schema, dict):  # true: anything goes
        return []
    kinds = {"string": str, "integer": int, "number": (int, float), "boolean": bool,
             "array": list, "object": dict, "null": type(None)}
    wanted = schema.get("type", [])
    wanted = [wanted] if isinstance(wanted, str) else wanted
    fits = any(isinstance(value, kinds.get(kind, object)) and not (
        isinstance(value, bool) and kind in ("integer", "number")) for kind in wanted)
    if wanted and not fits:
        return [f"{name} must be {' or '.join(wanted)}, not {json.dumps(value, ensure_ascii=False)[:80]}"]
    if "enum" in schema and value not in schema["enum"]:
        return [f"{name} must be one of {', '.join(map(str, schema['enum']))}, not {str(value)[:80]}"]
    found: list[str] = []
    if isinstance(value, dict):
        fields, inside = schema.get("properties", {}), "" if name == "input" else f"{name}."
        found += [f"{inside}{key} is missing" for key in schema.get("required", []) if key not in value]
        if schema.get("additionalProperties") is False:
            found += [f"{inside}{key} is unknown" for key in value if key not in fields]
        for key in fields.keys() & value.keys():
            found += problems(value[key], fields[key], inside + key)
    if isinstance(value, list):
        for index, item in enumerate(value):
            found += problems(item, schema.get("items", {}), f"{name}[{index}]")
    return sorted(found)


def check_input(tool: Tool, given: dict) -> None:
    """Raises ToolError that names every problem at once and the tool's fields."""
    if "invalid_json" in given:
        raise ToolError(f"{tool.name}: the input was not valid JSON: {given['invalid_json'][:200]}")
    if found := problems(given, tool.input_schema):
        required = tool.input_schema.get("required", [])
        fields = ", ".join(f"{key}{'' if key in required else '?'}: {part.get('type', 'any')}"
                           for key, part in tool.input_schema.get("properties", {}).items())
        raise ToolError(f"{tool.name}: {'; '.join(found)}. Its fields: {fields or 'none'}")


def clip(text: str, limit: int = OUTPUT_LIMIT) -> str:
    """The text, or its head and tail with the count of what was left out between them."""
    if len(text) <= limit:
        return text
    half = max(1, (limit - 60) // 2)
    return f"{text[:half]}\n[... {len(text) - 2 * half:,} characters left out ...]\n{text[-half:]}"


def tool_result(call: dict, content: str | list, is_error: bool = False) -> dict:
    """The block that answers a call. Text that could not be sent (blank, not UTF-8) is made sendable."""
    if isinstance(content, list):
        content = _clipped_blocks(sendable(content))
    else:
        text = clip(sendable("" if content is None else str(content)))
        content = text if text.strip() else ""
    result = {"type": "tool_result", "tool_use_id": call["id"], "content": content or "(no output)"}
    return {**result, "is_error": True} if is_error else result


def _clipped_blocks(blocks: list[dict]) -> list[dict]:
    """The content blocks of a result without blank texts; each text gets its share of OUTPUT_LIMIT."""
    room, kept = OUTPUT_LIMIT // max(1, len(blocks)), []
    for block in blocks:
        if block["type"] != "text":
            kept.append(block)
        elif block["text"].strip():
            kept.append({**block, "text": clip(block["text"], room)})
    return kept


def reason(error: Exception) -> str:
    """Why something failed: our own words, a file and the system's, or the exception's with its name."""
    if isinstance(error, OSError) and error.filename:
        return f"{error.filename}: {error.strerror}"
    return str(error) if isinstance(error, (ToolError, ModelError)) else f"{type(error).__name__}: {error}"


def dispatch(call: dict, tools: dict[str, Tool], permissions: "Permissions", agent: str = "main") -> dict:
    """Runs one tool call and always returns its tool_result: validated, permitted, clipped.

    Whatever a tool raises becomes a result with is_error. Ctrl-C inside the tool is raised on as
    Interrupted with what is known of the work done; before it, as it came.
    """
    name = call["name"]
    try:
        if name not in tools:
            raise ToolError(f"there is no tool {name!r}; the tools are {', '.join(tools)}")
        check_input(tools[name], call["input"])
        permissions.approve(tools[name], call["input"], agent)
        try:
            return tool_result(call, tools[name].run(**call["input"]))
        except KeyboardInterrupt as stop:
            raise Interrupted(*stop.args) from stop
    except ToolError as error:
        return tool_result(call, str(error), is_error=True)
    except Exception as error:  # the one boundary: a broken tool must not end the turn
        return tool_result(call, f"{name} failed: {reason(error)}", is_error=True)


# ---------------------------------------------------------------------------------- permissions

# Refused whatever was answered. A last net under tired eyes, not a sandbox: a shell command can
# be written in endless ways. The target may be quoted, or behind sh -c, env, sudo or xargs.
_WORDS = r"([^\s;&|]+([ \t]|\\\n)+){0,50}"  # a limit, because without one a long text takes minutes
_TARGET = r"""["']?(/+\.?|/\*|~/?|~/\*|\$\{?\w+\}?["']?/\*?|\$\{?HOME\}?)["']?(?=[\s;&|'")]|$)"""
_START = r"""(^|[;&|\n(]|\bsudo\s|\s-c\s*["'])\s*"""
_DISK = r"/dev/(sd|hd|vd|nvme|mmcblk|disk)"
WORST_COMMANDS = [
    (rf"\brm\s+(?={_WORDS}(-\w*[rR]|--recursive)){_WORDS}{_TARGET}",
     "it deletes everything below a root, or below a variable that may be empty"),
    (rf"\bch(mod|own)\s+(?={_WORDS}(-\w*R|--recursive)){_WORDS}{_TARGET}", "it changes all below a root"),
    (_START + r"(\S*/)?(mkfs(\.\w+)?|wipefs)\s", "it formats a disk"),
    (rf"\bdd\b.*\bof={_DISK}|>\s*{_DISK}", "it overwrites a disk"),
    (r":\s*\(\s*\)\s*\{.*:\s*\|\s*:", "it is a fork bomb"),
    (_START + r"(\S*/)?(shutdown|reboot|halt|poweroff)(?![\w./-])", "it stops the machine"),
]
# Run what their arguments name: "always" offers only the exact command, and rules look behind them
RUNNERS = set(
    "sh bash zsh dash ksh fish env xargs find exec eval source sudo su doas nohup timeout time nice watch "
    "setsid stdbuf command builtin coproc trap busybox parallel ssh if then elif else while until "
    "do !".split())
# The same for these, which run any code or delete any file by their options
NEVER_BY_PREFIX = RUNNERS | set(
    "awk gawk sed perl python pypy node deno bun ruby php lua npx npm pnpm yarn uv uvx pip pipx make docker "
    "podman kubectl tar rm rmdir mv dd chmod chown kill pkill killall crontab at osascript powershell pwsh "
    "cmd".split())


@dataclass(frozen=True)
class Decision:
    """`behavior` is allow, ask or deny; `why` is for the person or the model who reads it."""

    behavior: str
    why: str = ""


@dataclass
class Permissions:
    """Who may do what, as data. A rule is `tool` or `tool(pattern)`, with `*` as wildcard.

    The pattern is matched against the command, or the path, or else the tool's first field. Rules
    that deny or ask look at every part of a command, and take upper and lower case as one. `mode`
    is "ask", or "yes" (everything that would be asked is allowed). `asker(tool, input, rule, agent)`
    shows the question and returns yes, no or always (which stores `rule`); without one, ask means deny.
    """

    mode: str = "ask"
    allow: list[str] = field(default_factory=list)
    ask: list[str] = field(default_factory=list)
    deny: list[str] = field(default_factory=list)
    asker: Callable[[Tool, dict, str, str], str] | None = None

    def decide(self, tool: Tool, given: dict) -> Decision:
        """What the rules say, asking nobody: deny wins over ask, ask over allow.

        The worst commands are denied before any rule; without a rule reading is allowed, all else asks.
        """
        subject, is_command = subject_of(tool, given)
        for pattern, why in WORST_COMMANDS if is_command else []:
            if re.search(pattern, subject):
                return Decision("deny", f"{why}; this is never allowed")
        parts = [subject, *(command_parts(subject) if is_command else [os.path.normpath(subject)])]
        if rule := first_rule(self.deny, tool, parts):
            return Decision("deny", f"the rule {rule} forbids it")
        if self.mode == "yes":
            return Decision("allow", "started with --yes")
        if rule := first_rule(self.ask, tool, parts):
            return Decision("ask", f"the rule {rule} asks")
        # a compound command is allowed only as a whole: `git *` must not allow `git status; rm x`
        exact = (tool.name, f"{tool.name}({glob.escape(subject)})")
        single = not is_command or simple_command(subject) is not None
        for rule in self.allow:
            if matches(rule, tool.name, subject) and (single or rule in exact):
                return Decision("allow", f"the rule {rule} allows it")
        return Decision("allow", "it only reads") if tool.read_only else Decision("ask", "no rule says")

    def approve(self, tool: Tool, given: dict, agent: str = "main") -> None:
        """Returns if the call may run, asking if need be; raises ToolError for the model if not."""
        decision = self.decide(tool, given)
        if decision.behavior == "ask":
            rule = narrow_rule(tool, given)
            answer = self.asker(tool, given, rule, agent) if self.asker else "nobody"
            if answer == "always":
                self.allow.append(rule)
            decision = {
                "yes": Decision("allow", "the user said yes"), "always": Decision("allow", f"always: {rule}"),
                "no": Decision("deny", "the user said no; do not try the same by other means, but ask"),
            }.get(answer, Decision("deny", "there is no terminal to ask on; start with --yes to allow it"))
        emit("decision", agent=agent, tool=tool.name, behavior=decision.behavior, why=decision.why)
        if decision.behavior == "deny":
            raise ToolError(f"{tool.name} was not run: permission denied, {decision.why}")


def subject_of(tool: Tool, given: dict) -> tuple[str, bool]:
    """What the rules look at in a call, and whether it is a shell command.

    The schema decides which field it is, not the order in which the model wrote them.
    """
    fields = tool.input_schema.get("properties", {})
    names = [name for name in ("command", "path", *fields) if name in fields]
    name = next((name for name in names if name in given), "")
    return str(given.get(name, "")), name == "command"


def matches(rule: str, name: str, subject: str) -> bool:
    """Whether a rule speaks of this tool and subject; `git *` also matches the bare `git`."""
    tool, bracket, pattern = rule.partition("(")
    pattern = pattern.removesuffix(")")
    return fnmatch.fnmatchcase(name, tool) and (
        not bracket or subject == pattern or fnmatch.fnmatchcase(subject, pattern)
        or (pattern.endswith(" *") and subject == pattern[:-2]))


def first_rule(rules: list[str], tool: Tool, parts: list[str]) -> str | None:
    """The first rule that speaks of any of the parts, whatever their case: `RM` runs rm on some systems."""
    return next((rule for rule in rules for part in parts
                 if matches(rule.lower(), tool.name.lower(), part.lower())), None)


def command_parts(command: str) -> list[str]:
    """Every piece of a command line that a shell might run, for rules that forbid or ask.

    Splits at operators and also at quotes (sh -c 'rm x'), drops assignments and folders, and
    looks behind wrappers such as env and xargs: one piece too many forbids a harmless command,
    one too few lets a bad one through.
    """
    parts = []
    for piece in re.split(r"[;&|\n(){}`'\"]+", command.replace("\\", "")):
        words = piece.split()
        for first in range(min(len(words), 30)):
            parts.append(" ".join([words[first].rsplit("/", 1)[-1], *words[first + 1:]]))
            if words[0] not in RUNNERS and "=" not in words[first]:
                break
    return parts


def simple_command(command: str) -> list[str] | None:
    """The words of a command that is only one command, or None.

    Anything by which the shell could run or write something else makes it None: operators,
    redirections, substitutions, several lines. `echo "a && b"` is one command.
    """
    if re.search(r"[`\n\r]|\$[({]|[<>]\(", command):
        return None
    try:
        lexer = shlex.shlex(command, posix=True, punctuation_chars=True)
        lexer.commenters = ""
        words = list(lexer)
    except ValueError:  # a quote that does not close
        return None
    return words if words and not any(set(word) <= set("();<>|&") for word in words) else None


def narrow_rule(tool: Tool, given: dict) -> str:
    """The rule that "always" would store: this tool, or for a command this command's own prefix."""
    subject, is_command = subject_of(tool, given)
    if not is_command:
        return tool.name
    words = simple_command(subject) or [""]
    plain = re.fullmatch(r"[A-Za-z][\w.+-]*", words[0])
    never = words[0].rstrip("0123456789.") in NEVER_BY_PREFIX  # python3.12 is python
    takes_subcommand = words[0] in ("git", "cargo", "go")
    if not plain or never or takes_subcommand and not re.fullmatch(r"[a-z][a-z-]+", "".join(words[1:2])):
        return f"{tool.name}({glob.escape(subject)})"
    return f"{tool.name}({' '.join(words[:1 + takes_subcommand])} *)"


# ---------------------------------------------------------------------------------- toolboxes

BASE_TOOLS = {"bash": False, "read": True, "write": False, "edit": False,  # name: does it only read
              "grep": True, "glob": True, "revert": False}


def basic_tools(workspace: Workspace) -> dict[str, Tool]:
    """bash alone (s01)."""
    return registry(Tool.of(workspace.bash))


def extended_tools(workspace: Workspace) -> dict[str, Tool]:
    """All seven base tools (from s02 on)."""
    return registry(*(Tool.of(getattr(workspace, name), reads) for name, reads in BASE_TOOLS.items()))
