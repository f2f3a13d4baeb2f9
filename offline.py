"""offline.py · the stand-in model: the Messages API on loopback, no key needed.

It does not think, and it says so. It plays the model from the words of the
newest prompt:

    # a comment for the human
    glob **/*.py                         one call; the rest is its first field
    read core.py ++ read README.md       two calls in the same reply
    edit app.py :: old text :: new text  fields in the order of the schema
    todo_write {"tasks": ["a", "b"]}     or JSON, or key=value pairs
    call no_such_tool {"x": 1}           a call of any name, offered or not
    say All done.                        text

Steps are separated by newlines or ` ;; `. Each step is one reply, sent after
the results of the step before came back; a `say` in front of a call is the
text of that call's reply. Separators count only between white space and
outside quotes and JSON. A value that is one quoted string as a whole is
unquoted ("..." with JSON escapes, '...' as it is) and may span lines. Tool
names and fields come from the request's own `tools`, the first field being
the first required one; no tool has a line of special code.

Commands are also found where a prompt arrives in tags (<task>, <inbox>, ...);
text in <notification>, <reminder> or <system-reminder> is never obeyed. A
request without tools that asks for a summary gets an extractive one; its
<steps> block holds what is still to be played, so a compacted conversation
goes on where it was.

    python offline.py --port 8787 &
    curl -s http://127.0.0.1:8787/v1/messages -H 'x-api-key: any' \\
         -H 'anthropic-version: 2023-06-01' -d '{"model": "m", "max_tokens": 99,
         "messages": [{"role": "user", "content": "say Hello."}]}'

It is strict: a request that breaks the API's rules is answered 400, in the
API's error shape. It estimates tokens: a quarter of the UTF-8 bytes of a
block's compact JSON, at least 1 (for its own output: of the text, or of the
call's input). Prompt caching is played by exact prefix. A model whose name
ends in -32k has a window of 32,000 tokens.

Faults, one for each request in turn, separated by commas or spaces; FAULT*3
is three times. A 5xx has a retry-after as well when it is given :SECONDS.

    ok              no fault
    429[:SECONDS]   with retry-after (0)
    400[:prompt]    or 401 402 403 404 408 409 413 500 502 503 504 529
                    (413, 502: HTML)
    reset           TCP reset before the first byte
    slow:SECONDS    the first byte comes late
    cut[:BYTES]     the body ends there (or half way)
    stall:SECONDS   half the body, silence, then close
    stream-error    an error event in mid-stream
    bad-json        broken JSON as tool input
    max_tokens      the reply is cut
    pause           stop_reason pause_turn
    refusal         stop_reason refusal
    empty           no content at all
    blank           a blank text block
"""

from __future__ import annotations

import hashlib
import json
import os
import re
import socket
import socketserver
import struct
import sys
import threading
import time
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from typing import Any, Callable, Iterable, Iterator, NamedTuple

from offline_rules import (
    BODY_LIMIT, ENCODE, ERROR_TYPES, PAUSE, SECRETS, Cache, Piece, Refused, check, read_request)
from offline_script import GREETING, Reply, compose, cut_short, output_tokens

# ------------------------------------------------------------------ faults

NUMBER = r"\d+(?:\.\d+)?"
FAULTS = {"ok": "", **dict.fromkeys("429 500 502 503 504 529".split(), f"(?:{NUMBER})?"),
          "400": "(?:prompt)?", "reset": "", "slow": NUMBER,
          "cut": r"\d*", "stall": NUMBER, "stream-error": "", "bad-json": "", "max_tokens": "",
          "refusal": "", "pause": "", "empty": "", "blank": "",
          **dict.fromkeys("401 402 403 404 408 409 413".split(), "")}
MESSAGES = {429: "This request would exceed your rate limit.", 500: "Internal server error",
            529: "Overloaded", 401: "invalid x-api-key"}


def parse_faults(spec: str | Iterable[str]) -> list[str]:
    """'529*2, slow:1' as ['529', '529', 'slow:1']; ValueError names an unknown one."""
    faults = []
    for word in re.split(r"[,\s]+", spec if isinstance(spec, str) else " ".join(spec)):
        fault, _, times = word.partition("*")
        kind, _, value = fault.partition(":")
        if word:
            known = kind in FAULTS and re.fullmatch(FAULTS[kind], value)
            if not known or times and not times.isdecimal():
                raise ValueError(f"unknown fault {word!r}; known: {' '.join(FAULTS)}")
            faults += [fault] * int(times or 1)
    return faults


def bend(reply: Reply, kind: str) -> Reply:
    """The reply as the fault `kind` changes its shape; kinds of the wire leave it alone."""
    if kind == "max_tokens" and reply.content:
        return cut_short(reply)
    if kind == "refusal":
        return Reply([], "refusal", {"type": "refusal", "category": "general_harms",
                                     "explanation": "A fault that was asked for."})
    if kind == "pause":
        return Reply([{"type": "text", "text": PAUSE}], "pause_turn")
    if kind == "empty":
        return Reply([])
    calls = [block for block in reply.content if block["type"] == "tool_use"]
    if kind == "blank":
        return Reply([{"type": "text", "text": "\n" if calls else ""}, *calls], reply.stop_reason)
    if kind == "bad-json":
        for number, block in enumerate(reply.content):
            if block in calls:
                reply.raw[number] = block["input"] = ENCODE(block["input"])[:-1] + "]"
    return reply


# ------------------------------------------------------------------ HTTP

PATHS = ("/v1/messages", "/v1/messages/count_tokens")
KEPT = 1000  # records of requests


class Request(NamedTuple):
    """A request that keeps the rules; `owner` is whom its cache entries belong to."""

    body: dict
    pieces: list[Piece]
    owner: tuple


def window_of(model: str, usual: int) -> int:
    """Tokens: a model named NAME-32k has a window of 32,000; any other the `usual` one."""
    small = re.search(r"-(\d{1,4})k$", model)
    return min(usual, int(small[1]) * 1000) if small else usual


def envelope(reply: Reply, request: Request, usage: dict) -> dict:
    """The message on the wire. Ids come from the prompt: the same request, the same reply."""
    mark = hashlib.blake2b(request.pieces[-1].digest, digest_size=9).hexdigest()
    content = [{**block, "id": f"toolu_{mark}{number:02d}"} if block["type"] == "tool_use"
               else block for number, block in enumerate(reply.content)]
    return {"id": f"msg_{mark}", "type": "message", "role": "assistant",
            "model": request.body["model"], "content": content, "stop_reason": reply.stop_reason,
            "stop_sequence": None, "stop_details": reply.stop_details, "usage": usage}


def error_body(broken: Refused, request_id: str) -> dict:
    other = "invalid_request_error" if broken.status < 500 else "api_error"
    error = {"type": ERROR_TYPES.get(broken.status, other), "message": str(broken)}
    return {"type": "error", "error": error, "request_id": request_id}


def stream_events(message: dict, raw: dict[int, str]) -> Iterator[dict]:
    """The message as the events of a stream, in the API's order."""
    start = {"content": [], "stop_reason": None, "usage": {**message["usage"], "output_tokens": 1}}
    yield {"type": "message_start", "message": {**message, **start}}
    yield {"type": "ping"}
    for index, block in enumerate(message["content"]):
        call = block["type"] == "tool_use"
        text = raw.get(index, ENCODE(block["input"])) if call else block["text"]
        empty = {"input": {}} if call else {"text": ""}
        yield {"type": "content_block_start", "index": index, "content_block": {**block, **empty}}
        size = max(8, len(text) // 8)
        parts = [text[at:at + size] for at in range(0, len(text), size)]
        for part in ["", *parts] if call else parts:
            delta = ({"type": "input_json_delta", "partial_json": part} if call
                     else {"type": "text_delta", "text": part})
            yield {"type": "content_block_delta", "index": index, "delta": delta}
        yield {"type": "content_block_stop", "index": index}
    ends = {key: value for key, value in message.items() if key[:4] == "stop"}
    usage = {key: value for key, value in message["usage"].items() if key[-6:] == "tokens"}
    yield {"type": "message_delta", "delta": ends, "usage": usage}
    yield {"type": "message_stop"}


def break_off(events: list[dict]) -> list[dict]:
    """The stream up to the middle of its deltas, then an error event."""
    deltas = [n for n, event in enumerate(events) if event["type"] == "content_block_delta"]
    keep = deltas[len(deltas) // 2] + 1 if deltas else 2
    return events[:keep] + [{"type": "error", "error": {"type": "overloaded_error",
                                                        "message": "Overloaded"}}]


def sse(events: Iterable[dict]) -> bytes:
    return "".join(f"event: {event['type']}\ndata: {json.dumps(event)}\n\n"
                   for event in events).encode()


class Handler(BaseHTTPRequestHandler):
    """One connection: reads requests, answers them, plays the faults of the wire."""

    protocol_version = "HTTP/1.1"
    disable_nagle_algorithm = True
    wbufsize = -1  # headers and body leave in one packet
    server: "StandIn"

    def log_message(self, format: str, *args: object) -> None:
        """Quiet: the log is `StandIn.requests`."""

    def setup(self) -> None:
        super().setup()
        self.server.connections.add(self.connection)

    def finish(self) -> None:
        self.server.connections.discard(self.connection)
        super().finish()

    def do_GET(self) -> None:
        self.number = self.server.request_id()
        if self.path == "/":
            return self.send(200, {"name": "offline.py", "message": GREETING, "paths": PATHS})
        self.fail({"path": self.path}, Refused(f"Not found: {self.path}", 404))

    def do_POST(self) -> None:
        self.number, path = self.server.request_id(), self.path.partition("?")[0]
        headers = {name.lower(): value for name, value in self.headers.items()}
        hidden = dict.fromkeys(headers.keys() & SECRETS, "(redacted)")
        raw = self.read_body()
        record = {"path": path, "headers": {**headers, **hidden}, "body": None, "status": None,
                  "error": None, "usage": None, "reply": None, "bytes": len(raw)}
        fault = self.server.next_fault() if path == PATHS[0] else "ok"
        if path not in PATHS:
            return self.fail(record, Refused(f"Not found: {path}", 404))
        try:
            body = read_request(headers, raw, counting=path == PATHS[1])
            record["body"] = body if self.server.record else None
            pieces = check(body, window_of(body["model"], self.server.window))
        except Refused as broken:
            self.server.errors.append(str(broken))
            return self.fail(record, broken)
        if path == PATHS[0]:
            owner = (headers.get("x-api-key"), headers.get("authorization"), body["model"])
            return self.play(Request(body, pieces, owner), record, *fault.partition(":")[::2])
        self.note(record, 200)
        self.send(200, {"input_tokens": pieces[-1].total})

    def read_body(self) -> bytes:
        """The body; of one over the limit no more than what shows that it is."""
        length, raw = self.headers.get("content-length") or "", b""
        left = int(length) if length.isdecimal() else 0
        while left > BODY_LIMIT:  # read it all the same: closing early would reset the client
            raw = self.rfile.read(BODY_LIMIT)
            left -= len(raw) or left
        rest = self.rfile.read(left)
        if len(rest) < left:
            raise ConnectionAbortedError("the client left in the middle of its request")
        return raw + rest

    def play(self, request: Request, record: dict, kind: str, value: str) -> None:
        """Answer a request that keeps the rules, with the fault `kind` and its `value`."""
        stream = bool(request.body.get("stream"))
        if kind == "reset":
            return self.reset(record)
        if kind == "stream-error" and not stream:
            kind = "529"
        if kind.isdecimal():
            return self.fail_on_purpose(request, record, int(kind), value)
        reply = bend(compose(request.body), kind)
        usage = {**self.server.account(request), "output_tokens": output_tokens(reply.content),
                 "service_tier": "standard"}
        message = envelope(reply, request, usage)
        self.note(record, 200, usage=usage, reply=message)
        if kind == "slow":
            self.server.stopping.wait(float(value))
        if not stream:
            return self.deliver(json.dumps(message).encode(), "application/json", kind, value)
        events = list(stream_events(message, reply.raw))
        events = break_off(events) if kind == "stream-error" else events
        self.deliver(sse(events), "text/event-stream", kind, value)

    def deliver(self, payload: bytes, content_type: str, kind: str, value: str) -> None:
        half = len(payload) // 2
        cut = int(value or half) if kind == "cut" else half if kind == "stall" else None
        self.send(200, payload, kind=content_type, cut=cut)
        if kind == "stall":
            self.server.stopping.wait(float(value))

    def reset(self, record: dict) -> None:
        self.note(record, None, error="reset")
        self.connection.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, struct.pack("ii", 1, 0))
        socket.close(self.connection.detach())  # lingering for 0 s makes this a reset
        self.close_connection = True

    def fail_on_purpose(self, request: Request, record: dict, status: int, value: str) -> None:
        message = MESSAGES.get(status, f"Fault {status}")
        if value == "prompt":
            message = (f"prompt is too long: {request.pieces[-1].total} tokens > "
                       f"{self.server.window} maximum")
        timed = status == 429 or status >= 500 and value
        headers = {"retry-after": value or "0"} if timed else {}
        if status not in (413, 502):
            return self.fail(record, Refused(message, status), headers)
        self.note(record, status, error=message)  # a proxy answers these, and not in JSON
        self.send(status, b"<html><h1>%d</h1></html>" % status, headers)

    def fail(self, record: dict, broken: Refused, headers: dict = {}) -> None:
        self.note(record, broken.status, error=str(broken))
        self.send(broken.status, error_body(broken, self.number), headers)

    def note(self, record: dict, status: int | None, **more: object) -> None:
        """Keep the record before the answer leaves, so that a test sees it."""
        self.server.keep({**record, "status": status, **more})

    def send(self, status: int, body: dict | bytes, headers: dict = {}, kind: str = "text/html",
             cut: int | None = None) -> None:
        """Answer with an object, or with bytes of the type `kind`; a stream goes out in one chunk.

        With `cut` the headers promise all of the body, and the connection ends after `cut` bytes.
        """
        if isinstance(body, dict):
            body, kind = json.dumps(body).encode(), "application/json"
        stream = kind == "text/event-stream"
        length = {"transfer-encoding": "chunked"} if stream else {"content-length": len(body)}
        self.send_response(status)
        for name, value in {"content-type": kind, "request-id": self.number, **length,
                            **headers}.items():
            self.send_header(name, str(value))
        self.end_headers()
        frame = b"%x\r\n%b\r\n0\r\n\r\n" % (len(body), body) if stream else body
        self.wfile.write(frame if cut is None else frame[:frame.index(body) + cut])
        self.wfile.flush()
        self.close_connection = self.close_connection or cut is not None


class StandIn(ThreadingHTTPServer):
    """The running stand-in. `start()` makes one; it serves until `stop()`, or as a `with` block.

    `requests` keeps a record of each of the last requests: path, headers, bytes, body (when asked
    for), status, error, usage, reply. `errors` are the rules that were broken, `faults` those to come.
    """

    daemon_threads = True
    request_queue_size = 128

    def __init__(self, port: int, faults: list[str], window: int, clock: Callable[[], float],
                 record: bool, log: str | None):
        super().__init__(("127.0.0.1", port), Handler)
        self.url = f"http://127.0.0.1:{self.server_address[1]}"
        self.faults, self.window, self.record = faults, window, record
        self.requests: list[dict] = []
        self.errors: list[str] = []
        self.connections: set[socket.socket] = set()
        self.cache, self.count, self.lock = Cache(clock), 0, threading.Lock()
        self.stopping = threading.Event()
        self.log = open(log, "a", encoding="utf-8") if log else None
        self.serving = threading.Thread(target=self.serve, daemon=True)
        self.serving.start()

    def serve(self) -> None:
        """Takes connections until `stop`; unlike serve_forever it sleeps in between, and stops at once."""
        while not self.stopping.is_set():
            self.handle_request()

    def server_bind(self) -> None:
        socketserver.TCPServer.server_bind(self)  # HTTPServer's asks the resolver for a name

    def handle_error(self, request: Any, client_address: Any) -> None:
        if not isinstance(sys.exc_info()[1], OSError):  # a client that goes away is no error
            super().handle_error(request, client_address)

    def inject(self, *faults: str) -> None:
        self.faults += parse_faults(faults)

    def next_fault(self) -> str:
        with self.lock:
            return self.faults.pop(0) if self.faults else "ok"

    def request_id(self) -> str:
        with self.lock:
            self.count += 1
            return f"req_{self.count:06d}"

    def account(self, request: Request) -> dict:
        with self.lock:
            return self.cache.account(request.owner, request.pieces)

    def keep(self, record: dict) -> None:
        line = {key: record.get(key) for key in ("path", "status", "error", "usage", "bytes")}
        line["stop_reason"] = (record.get("reply") or {}).get("stop_reason")
        with self.lock:
            self.requests.append(record)
            del self.requests[:-KEPT]
            if self.log and not self.log.closed:
                self.log.write(json.dumps(line) + "\n")
                self.log.flush()

    def stop(self) -> None:
        """Close every socket; calling it again does nothing."""
        if not self.stopping.is_set():
            self.stopping.set()
            try:
                socket.create_connection(self.server_address, timeout=1).close()  # wakes `serve`
                self.serving.join(1)
            except OSError:
                pass  # no more sockets; it ends with the program
            self.server_close()
            for connection in list(self.connections):
                try:
                    connection.shutdown(socket.SHUT_RDWR)
                except OSError:
                    pass  # already gone
            if self.log:
                self.log.close()

    def __exit__(self, *error: object) -> None:
        self.stop()


def start(port: int = 0, *, faults: str | Iterable[str] = (), window: int = 200_000,
          clock: Callable[[], float] = time.time, record: bool = False,
          log: str | None = None) -> StandIn:
    """A stand-in that already serves, in a daemon thread, on a port of its own when `port` is 0.

    `window` is the context window in tokens, `clock` what cache lifetimes are measured by.
    `record` keeps the body of each request too; a long conversation kept once for each of its
    turns is much memory. `log` is a file that gets a line of JSON for each request: path, status,
    error, usage, bytes, stop_reason. OFFLINE_FAULTS and OFFLINE_LOG stand in for `faults` and `log`.
    """
    planned = parse_faults(faults) or parse_faults(os.environ.get("OFFLINE_FAULTS", ""))
    return StandIn(port, planned, window, clock, record, log or os.environ.get("OFFLINE_LOG"))


def main() -> int:
    """The command line: serves until Ctrl-C; returns the exit code."""
    import argparse  # only the command line needs it
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--port", type=int, default=8787, help="default: 8787; 0 takes a free one")
    parser.add_argument("--fault", action="append", default=[], help="as above; may be given again")
    parser.add_argument("--window", type=int, default=200_000, help="tokens of context; default: 200000")
    parser.add_argument("--log", metavar="FILE", help="writes each request as a line of JSON")
    options = parser.parse_args()
    try:
        with start(options.port, faults=options.fault, window=options.window,
                   log=options.log) as server:
            print(f"Stand-in model: export ANTHROPIC_BASE_URL={server.url}   (Ctrl-C ends it)",
                  flush=True)
            threading.Event().wait()
    except (ValueError, OverflowError) as error:
        parser.error(str(error))
    except OSError as error:
        name = error.filename or f"port {options.port}"
        print(f"offline: {name}: {error.strerror or error}; choose another one", file=sys.stderr)
        return 1
    except KeyboardInterrupt:
        return 0


if __name__ == "__main__":
    sys.exit(main())
