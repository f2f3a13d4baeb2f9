"""A second, independently written server of the Messages API, as thin as those of local models are.

It sends minimal usage, no cache fields and only end_turn and tool_use as stop reasons, knows no
count_tokens and ignores unknown fields. It has no plan of its own: it counts the tool results in the
request and asks for bash until there are enough. A table says what it does instead of answering at
which request, so that every fault strikes in the middle of a run.
"""

import json
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer


class ThinServer(ThreadingHTTPServer):
    """Asks for bash `calls` times, then says "All done."; `faults[n]` replaces its n-th answer.

    A fault is a function of the handler and the regular answer. `always` does so at every request
    from the third on for which nothing else is planned, until it is set to None.
    """

    daemon_threads = True

    def __init__(self, calls: int = 4):
        super().__init__(("127.0.0.1", 0), ThinHandler)
        self.calls, self.faults, self.always = calls, {}, None
        self.requests: list[dict] = []
        self.url = f"http://127.0.0.1:{self.server_port}"

    def handle_error(self, request, client_address):
        pass  # a connection that was broken on purpose


class ThinHandler(BaseHTTPRequestHandler):
    protocol_version = "HTTP/1.1"
    disable_nagle_algorithm = True

    def do_POST(self):
        request = json.loads(self.rfile.read(int(self.headers["content-length"])))
        if self.path != "/v1/messages":
            return self.answer(404, b"404 page not found", "text/plain")
        self.server.requests.append(request)
        self.number = number = len(self.server.requests)
        fault = self.server.faults.get(number) or (self.server.always if number >= 3 else None)
        reply = self.reply(request)
        fault(self, reply) if fault else self.answer(200, reply)

    def reply(self, request: dict) -> dict:
        """What a model would say: another call until there were enough results since the last prompt."""
        done = 0
        for message in reversed(request["messages"]):
            blocks = message["content"] if isinstance(message["content"], list) else []
            if message["role"] == "user" and not any(block["type"] == "tool_result" for block in blocks):
                break
            done += sum(block["type"] == "tool_result" for block in blocks)
        if done >= self.server.calls:
            content, stop = [{"type": "text", "text": "All done."}], "end_turn"
        else:
            content, stop = [{"type": "tool_use", "id": f"call_{self.number}", "name": "bash",
                              "input": {"command": f"echo {self.number}"}}], "tool_use"
        return {"id": f"msg_{self.number}", "type": "message", "role": "assistant", "model": request["model"],
                "content": content, "stop_reason": stop, "usage": {"input_tokens": 10, "output_tokens": 5}}

    def answer(self, status: int, body: dict | bytes, kind: str = "application/json", promised: int = 0, **headers):
        raw = body if isinstance(body, bytes) else json.dumps(body).encode()
        self.send_response(status)
        self.send_header("content-type", kind)
        self.send_header("content-length", str(promised or len(raw)))
        for name, value in headers.items():
            self.send_header(name.replace("_", "-"), value)
        self.end_headers()
        self.wfile.write(raw)

    def log_message(self, *arguments):
        pass


def failing(status: int, kind: str = "api_error", message: str = "It failed.", **headers):
    """The API's error shape; `retry_after="0"` keeps the test quick."""
    body = {"type": "error", "error": {"type": kind, "message": message}}
    return lambda handler, reply: handler.answer(status, body, **headers)


def page(status: int, **headers):
    """What a proxy in between says, in its own words."""
    text = f"<html>\n<head><title>{status}</title></head>\n<body>\n<h1>Nginx says no</h1>\n</body></html>\n"
    return lambda handler, reply: handler.answer(status, text.encode(), "text/html", **headers)


def altered(**changes):
    """The regular answer with some fields replaced, or left out where the value is None."""
    def fault(handler, reply):
        handler.answer(200, {key: value for key, value in (reply | changes).items() if value is not None})
    return fault


def with_input(given):
    """The regular tool call with another `input`."""
    return lambda handler, reply: handler.answer(200, reply | {"content": [reply["content"][0] | {"input": given}]})


OVERLOADED = failing(529, "overloaded_error", "Overloaded", retry_after="0")
