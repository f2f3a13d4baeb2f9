"""arguments · the command line, the same for every session, and what is wrong with it in one line"""

import argparse
import sys
from pathlib import Path

import core
from screen import trace_to


def parse_arguments(session: str, title: str, options: dict[str, dict]) -> argparse.Namespace:
    """What the command line says, checked; what is wrong with it is said, and the exit code is 2.

    `options` are the session's own, {"--name": argparse keywords}. The prompt of `-p -` is read, and
    `--trace` listens from here on.
    """
    parser = argparse.ArgumentParser(description=f"{session} · {title}", allow_abbrev=False)
    add = parser.add_argument
    add("-p", dest="prompt", metavar="PROMPT", help="run one prompt, print the answer; - reads stdin")
    add("--demo", action="store_true", help="play the demonstration in a throw-away workspace")
    add("--yes", action="store_true", help="allow what would be asked (the worst commands stay denied)")
    add("--workdir", type=Path, default=Path("."), help="the workspace; default: the current folder")
    add("--model", default="", help="the model's id; default: MODEL_ID, or a current Sonnet")
    add("--max-turns", type=int, default=300, metavar="N", help="model calls per prompt; default: 300")
    add("--no-wait", dest="wait", action="store_false", help="with -p: do not wait for background work")
    add("--trace", type=Path, metavar="FILE", help="write every event as a line of JSON")
    add("--output-format", choices=("text", "json"), default="text", help="of -p")
    for name, keywords in options.items():
        add(name, **keywords)
    arguments = parser.parse_args()
    try:
        arguments.workdir = arguments.workdir.resolve(strict=True)
    except OSError as error:  # also the current folder, deleted meanwhile
        parser.error(f"--workdir {arguments.workdir} is not a folder: {error.strerror}")
    if not arguments.workdir.is_dir():
        parser.error(f"--workdir {arguments.workdir} is not a folder")
    if arguments.demo and arguments.prompt is not None:
        parser.error("--demo plays its own prompts; leave -p out")
    if arguments.max_turns < 1:
        parser.error("--max-turns must be at least 1")
    if arguments.output_format == "json" and arguments.prompt is None:
        parser.error("--output-format json needs -p")
    if arguments.prompt == "-":
        arguments.prompt = sys.stdin.read()
    if arguments.prompt is not None and not arguments.prompt.strip():
        parser.error("the prompt is empty")
    if arguments.trace:
        try:
            core.listeners.append(trace_to(arguments.trace))
        except OSError as error:
            parser.error(f"--trace {arguments.trace}: {error.strerror}")
    return arguments
