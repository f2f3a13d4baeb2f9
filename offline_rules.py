"""offline_rules · what the API demands of a request, and what it bills

The stand-in refuses what the Messages API would refuse, in the API's words, so that a harness
that works here works there. `read_request` and `check` run every rule over one request and
return the prompt as pieces in the order of prompt caching: tools, system, messages. Sources:
platform.claude.com/docs (API errors, tool use, prompt caching); the words are the server's own
where public reports quote them.

Tokens are an estimate: a quarter of the UTF-8 bytes of a block's compact JSON, at least 1.
"""

from __future__ import annotations

import hashlib
import json
import re
from typing import Any, Callable, NamedTuple

PAUSE = "Still working on it."  # what ends a paused turn, which is sent back as it is
SECRETS = {"x-api-key", "authorization"}
BODY_LIMIT = 32 * 1024 * 1024  # bytes, the API's
ENCODE = json.JSONEncoder(ensure_ascii=False, separators=(",", ":")).encode


def no_constant(name: str) -> None:
    raise ValueError(f"{name} is not JSON")


def blocks_of(content: Any) -> list[dict]:
    """The content of a message as blocks: a plain string is one text block."""
    return [{"type": "text", "text": content}] if isinstance(content, str) else content or []


def text_of(blocks: list[dict]) -> str:
    return "\n".join(block.get("text", "") for block in blocks if block.get("type") == "text")


# ------------------------------------------------------------------ the API's rules

ERROR_TYPES = {401: "authentication_error", 402: "billing_error", 403: "permission_error",
               404: "not_found_error", 409: "conflict_error", 413: "request_too_large",
               429: "rate_limit_error", 504: "timeout_error", 529: "overloaded_error"}


class Refused(Exception):
    """A request that breaks a rule: the API's words, and the HTTP status."""

    def __init__(self, message: str, status: int = 400):
        super().__init__(message)
        self.status = status


def need(condition: object, message: str, *details: object, status: int = 400) -> None:
    if not condition:
        raise Refused(message % details if details else message, status)


TYPES = {"str": str, "int": int, "bool": bool, "list": list, "dict": dict, "any": object}


def fields_of(spec: str) -> dict[str, tuple[bool, tuple[type, ...]]]:
    """'name:str tags?:list|dict' as {field: (required, types)}."""
    pairs = (word.split(":") for word in spec.split())
    return {name.rstrip("?"): (name[-1] != "?", tuple(TYPES[kind] for kind in kinds.split("|")))
            for name, kinds in pairs}


REQUEST = fields_of(
    "model:str messages:list max_tokens:int system?:str|list tools?:list tool_choice?:dict "
    "stream?:bool stop_sequences?:list thinking?:dict metadata?:dict cache_control?:dict "
    "temperature?:any top_p?:any top_k?:any output_config?:any service_tier?:any speed?:any "
    "inference_geo?:any container?:any diagnostics?:any context_management?:any compaction?:any "
    "mcp_servers?:any output_format?:any fallbacks?:any fallback_credit_token?:any")
SAMPLING = {"temperature", "top_p", "top_k"}  # gone with API version 2026-10-21
MESSAGE = fields_of("role:str content:str|list")
TOOL = fields_of(
    "name:str input_schema:dict description?:str type?:str cache_control?:dict strict?:bool "
    "defer_loading?:bool input_examples?:list eager_input_streaming?:bool allowed_callers?:list")
CALL = "id:str name:str input:dict caller?:any toolset_name?:any"
MARKED = "type:str cache_control?:dict "
BLOCKS = {  # type: (where it may stand, its fields)
    "text": ("user assistant system result", fields_of(MARKED + "text:str citations?:list")),
    "image": ("user result", fields_of(MARKED + "source:dict")),
    "document": ("user result", fields_of(
        MARKED + "source:dict title?:str context?:str citations?:dict")),
    "search_result": ("user result", fields_of(
        MARKED + "source:str title:str content:list citations?:dict")),
    "tool_reference": ("result", fields_of(MARKED + "tool_name:str")),
    "container_upload": ("user", fields_of(MARKED + "file_id:str")),
    "thinking": ("assistant", fields_of("type:str thinking:str signature:str")),
    "redacted_thinking": ("assistant", fields_of("type:str data:str")),
    "tool_use": ("assistant", fields_of(MARKED + CALL)),
    "server_tool_use": ("assistant", fields_of(MARKED + CALL)),
    "tool_result": ("user", fields_of(
        MARKED + "tool_use_id:str content?:str|list is_error?:bool toolset_name?:any"))}


def check_fields(where: str, given: Any, fields: dict) -> None:
    """`given` is an object with the required ones of `fields`, no others, each of its type."""
    need(isinstance(given, dict), "%s: Input should be a valid dictionary", where or "body")
    dot = where and where + "."
    for name, (required, _) in fields.items():
        need(not required or name in given, "%s%s: Field required", dot, name)
    for name, value in given.items():
        required, kinds = fields.get(name, (False, ()))
        need(kinds, "%s%s: Extra inputs are not permitted", dot, name)
        right = isinstance(value, kinds) and (value is not True and value is not False
                                              or int not in kinds)
        need(right or value is None and not required, "%s%s: Input should be a valid %s",
             dot, name, kinds[0].__name__)


def check_tools(tools: list) -> None:
    """Tool definitions: name, schema of type object, no name twice."""
    for number, tool in enumerate(tools):
        if isinstance(tool, dict) and tool.get("type", "custom") != "custom":
            continue  # one of the API's own tools: its definition is known to the API
        where = f"tools.{number}.custom"
        check_fields(where, tool, TOOL)
        need(re.fullmatch(r"[a-zA-Z0-9_-]{1,128}", tool["name"]),
             "%s.name: String should match pattern '^[a-zA-Z0-9_-]{1,128}$'", where)
        schema = tool["input_schema"]
        need(schema.get("type") == "object",
             "%s.input_schema.type: Input should be 'object'", where)
        need(not schema.keys() & {"oneOf", "allOf", "anyOf"}, "%s.input_schema: input_schema "
             "does not support oneOf, allOf, or anyOf at the top level", where)
        inner = schema.get("properties", {})
        need(isinstance(inner, dict) and all(isinstance(one, (dict, bool)) for one in inner.values())
             and isinstance(schema.get("required", []), list),
             "%s.input_schema: JSON schema is invalid. It must match JSON Schema draft 2020-12",
             where)
        for key in inner:
            need(re.fullmatch(r"[a-zA-Z0-9_.-]{1,64}", key), "%s.input_schema.properties: Property keys "
                 "should match pattern '^[a-zA-Z0-9_.-]{1,64}$'", where)
    names = [str(tool["name"]) for tool in tools if "name" in tool]
    need(len(names) == len({*names}), "tools: Tool names must be unique.")


def check_block(where: str, place: str, block: Any) -> None:
    """A block of a message, of the system prompt or of a result, as `place` says."""
    kind = block.get("type") if isinstance(block, dict) else None
    if place == "assistant" and re.fullmatch("compaction|.+_tool_result", str(kind)):
        return  # what the API's own tools answered; it goes back as it came
    need(isinstance(kind, str) and kind in BLOCKS, "%s: Input tag '%s' found using 'type' does "
         "not match any of the expected tags: %s", where, kind, ", ".join(BLOCKS))
    places, fields = BLOCKS[kind]
    need(place in places, "%s: `%s` blocks are not allowed in `%s` content", where, kind, place)
    check_fields(f"{where}.{kind}", block, fields)
    if kind == "text":
        need(block["text"] or not block.get("cache_control"),
             "%s.text: cache_control cannot be set for empty text blocks", where)
        need(block["text"], "messages: text content blocks must be non-empty")
        need(not block["text"].isspace(),
             "messages: text content blocks must contain non-whitespace text")
    elif kind == "tool_use":
        need(re.fullmatch(r"[a-zA-Z0-9_-]+", block["id"]),
             "%s.tool_use.id: String should match pattern '^[a-zA-Z0-9_-]+$'", where)
        need(re.fullmatch(r"[a-zA-Z0-9_-]{1,64}", block["name"]),
             "%s.tool_use.name: String should match pattern '^[a-zA-Z0-9_-]{1,64}$'", where)
    elif kind == "tool_result" and isinstance(block.get("content"), list):
        for number, inner in enumerate(block["content"]):
            check_block(f"{where}.tool_result.content.{number}", "result", inner)


def check_messages(messages: list) -> list[tuple[int, str, list[dict]]]:
    """The messages as (number, role, blocks); equal roles in a row are one, as in the API."""
    joined: list[tuple[int, str, list[dict]]] = []
    for number, message in enumerate(messages):
        check_fields(f"messages.{number}", message, MESSAGE)
        role, blocks = message["role"], blocks_of(message["content"])
        need(role in ("user", "assistant"), 'messages: Unexpected role "%s". Allowed roles are '
             '"user" or "assistant".', role)
        need(message["content"] or role == "assistant" and number == len(messages) - 1,
             "messages.%d: all messages must have non-empty content except for the optional "
             "final assistant message", number)
        for place, block in enumerate(blocks):
            check_block(f"messages.{number}.content.{place}", role, block)
        if joined and joined[-1][1] == role:
            joined[-1][2].extend(blocks)
        else:
            joined.append((number, role, [*blocks]))
    need(joined, "messages: at least one message is required")
    need(joined[0][1] == "user", 'messages: first message must use the "user" role')
    return joined


def check_pairs(joined: list[tuple[int, str, list[dict]]]) -> None:
    """Each tool_use has an id of its own and one tool_result, first in the next message."""
    seen: set[str] = set()
    waiting: list[str] = []
    for number, _, blocks in [*joined, (len(joined), "the end", [])]:
        check_results(number, blocks, waiting)
        waiting = [block["id"] for block in blocks if block["type"] == "tool_use"]
        need(len({*waiting}) == len(waiting) and seen.isdisjoint(waiting),
             "messages.%d: `tool_use` ids must be unique", number)
        seen.update(waiting)


def check_results(number: int, blocks: list[dict], waiting: list[str]) -> None:
    """The results in message `number` answer exactly the calls `waiting` of the one before."""
    answered: set[str] = set()
    for place, block in enumerate(blocks):
        if block["type"] == "tool_result":
            key = block["tool_use_id"]
            need(key in waiting, "messages.%d.content.%d: unexpected `tool_use_id` found in "
                 "`tool_result` blocks: %s. Each `tool_result` block must have a corresponding "
                 "`tool_use` block in the previous message.", number, place, key)
            need(key not in answered, "messages.%d.content.%d: each tool_use must have a single "
                 "result. Found multiple `tool_result` blocks with id: %s", number, place, key)
            need(place == len(answered), "messages.%d.content.%d: `tool_result` blocks must come "
                 "first in their message", number, place)
            answered.add(key)
    missing = [key for key in waiting if key not in answered]
    need(not missing, "messages.%d: `tool_use` ids were found without `tool_result` blocks "
         "immediately after: %s. Each `tool_use` block must have a corresponding `tool_result` "
         "block in the next message.", number - 1, ", ".join(missing))


def check_ending(joined: list[tuple[int, str, list[dict]]]) -> None:
    _, role, blocks = joined[-1]
    said = text_of(blocks)
    need(role == "user" or said == said.rstrip(),
         "messages: final assistant content cannot end with trailing whitespace")
    need(role == "user" or said.endswith(PAUSE), "This model does not support assistant message "
         "prefill. The conversation must end with a user message.")


def read_request(headers: dict[str, str], raw: bytes, counting: bool) -> dict:
    """The body of a request whose headers, syntax and top-level fields are right."""
    need(headers.keys() & SECRETS, "x-api-key header is required", status=401)
    version = headers.get("anthropic-version")
    need(version, "anthropic-version: header is required")
    need(len(raw) <= BODY_LIMIT, "Request exceeds the maximum size", status=413)
    try:
        body = json.loads(raw, parse_constant=no_constant)
    except (ValueError, RecursionError) as error:
        raise Refused(f"The request body is not valid JSON: {error}") from None
    check_fields("", body, {**REQUEST, "max_tokens": (not counting, (int,))})
    for name in SAMPLING & body.keys():
        need(version < "2026-10-21", "%s: Extra inputs are not permitted", name)
    need(body.get("max_tokens", 0) >= 0, "max_tokens: Input should be at least 0")
    return body


def check(body: dict, window: int) -> list[Piece]:
    """The prompt in pieces, or Refused when it breaks a rule of the API."""
    check_tools(body.get("tools") or [])
    for number, block in enumerate(blocks_of(body.get("system") or None)):
        check_block(f"system.{number}", "system", block)
    joined = check_messages(body["messages"])
    check_pairs(joined)
    check_ending(joined)
    automatic = lifetime(body.get("cache_control"), "body")
    pieces = check_marks(automatic, measure(body, joined))
    need(pieces[-1].total <= window, "prompt is too long: %d tokens > %d maximum",
         pieces[-1].total, window)
    return pieces


# ------------------------------------------------------------------ tokens and cache

IMAGE_TOKENS = 1600   # flat for an image or document, whatever its bytes
CACHE_MINIMUM = 1024  # tokens; the API leaves a shorter prefix uncached, in silence
LOOK_BACK = 20        # blocks before a mark, itself included, where an earlier entry is found
LIFETIMES = {"5m": 300, "1h": 3600}  # seconds


class Piece(NamedTuple):
    """A block of the prompt, in cache order: digest and tokens of the prompt up to its end."""

    digest: bytes
    total: int
    mark: str | None  # the lifetime its cache_control asks for


def estimate(text: str) -> int:
    """Tokens of a text: one for 4 bytes of UTF-8, at least 1."""
    return max(1, len(text.encode("utf-8", "surrogatepass")) // 4)


def lifetime(control: Any, where: str) -> str | None:
    if control is None:
        return None
    ttl = control.get("ttl", "5m") if isinstance(control, dict) else None
    need(isinstance(control, dict) and control.get("type") == "ephemeral" and ttl in LIFETIMES,
         "%s.cache_control: Input should be {'type': 'ephemeral', 'ttl': '5m' or '1h'}", where)
    return ttl


def measure(body: dict, joined: list[tuple[int, str, list[dict]]]) -> list[Piece]:
    """The prompt as pieces in cache order: tools, system, messages. Each is hashed once.

    A changed tool_choice or thinking parameter leaves tools and system in the cache, no message.
    """
    blocks = [("tools", tool) for tool in body.get("tools") or []]
    blocks += [("system", block) for block in blocks_of(body.get("system"))]
    blocks += [(role, block) for _, role, blocks in joined for block in blocks]
    changed = ENCODE([body.get("tool_choice"), body.get("thinking")])
    pieces, digest, total = [], b"", 0
    for place, block in blocks:
        mark = lifetime(block.get("cache_control"), place)
        if "cache_control" in block:
            block = {key: value for key, value in block.items() if key != "cache_control"}
        text = ENCODE(block)
        prefix = place if place in ("tools", "system") else place + changed
        data = (prefix + text).encode("utf-8", "surrogatepass")
        digest = hashlib.blake2b(data, key=digest, digest_size=16).digest()
        total += IMAGE_TOKENS if block.get("type") in ("image", "document") else estimate(text)
        pieces.append(Piece(digest, total, mark))
    return pieces


def check_marks(automatic: str | None, pieces: list[Piece]) -> list[Piece]:
    """The pieces with the automatic mark of the top-level cache_control put on the last one."""
    marks = [piece.mark for piece in pieces if piece.mark]
    count = len(marks) + bool(automatic)
    need(count <= 4, "A maximum of 4 blocks with cache_control may be provided. Found %d.", count)
    if automatic:
        need(pieces[-1].mark in (None, automatic),
             "cache_control: the last block is already marked with another ttl")
        pieces[-1] = pieces[-1]._replace(mark=automatic)
        marks.append(automatic)
    need(marks == sorted(marks), "A block with ttl='1h' cache_control must not come after one "
         "with ttl='5m'.")  # "1h" sorts before "5m"
    return pieces


class Cache:
    """Prompt caching: entries are written at marks and found by the exact prefix before them."""

    def __init__(self, clock: Callable[[], float]):
        self.clock = clock
        self.entries: dict[tuple, tuple[float, int]] = {}  # key: (when it ends, its lifetime)

    def keep(self, key: tuple, seconds: int) -> None:
        """Write an entry, or refresh it; its lifetime never gets shorter."""
        now, (ends, before) = self.clock(), self.entries.get(key, (0, 0))
        seconds = max(seconds, before if ends > now else 0)
        self.entries[key] = (now + seconds, seconds)

    def account(self, owner: tuple, pieces: list[Piece]) -> dict:
        """The input side of `usage` for this prompt; entries belong to `owner` alone."""
        now, total = self.clock(), pieces[-1].total
        self.entries = {key: entry for key, entry in self.entries.items() if entry[0] > now}
        marks = [number for number, piece in enumerate(pieces)
                 if piece.mark and piece.total >= CACHE_MINIMUM]
        near = (number for mark in reversed(marks)
                for number in range(mark, max(-1, mark - LOOK_BACK), -1))
        hit = next((n for n in near if (*owner, pieces[n].digest) in self.entries), None)
        covered = read = 0
        if hit is not None:
            self.keep((*owner, pieces[hit].digest), 0)
            covered = read = pieces[hit].total
        written = dict.fromkeys(LIFETIMES, 0)
        for piece in (pieces[mark] for mark in marks):
            self.keep((*owner, piece.digest), LIFETIMES[piece.mark])
            written[piece.mark] += max(0, piece.total - covered)
            covered = max(covered, piece.total)
        return {"input_tokens": total - covered, "cache_read_input_tokens": read,
                "cache_creation_input_tokens": covered - read,
                "cache_creation": {f"ephemeral_{ttl}_input_tokens": tokens
                                   for ttl, tokens in written.items()}}
