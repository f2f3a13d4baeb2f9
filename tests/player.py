"""Plays programs in forks of one process that has imported the SDK once: real processes, without its second each.

Reads a list of jobs {script, arguments, folder, environment, output} as JSON from standard input; prints
{script: exit code}. The output of each goes to its file.
"""

import json
import os
import runpy
import sys

TOGETHER = 2  # programs at once


def play(job):
    """In the fork: becomes the program. It ends as any program does, by SystemExit or by its last line."""
    os.chdir(job["folder"])
    os.environ.update(job["environment"])
    output = os.open(job["output"], os.O_WRONLY | os.O_CREAT | os.O_TRUNC)
    os.dup2(output, 1)
    os.dup2(output, 2)
    sys.argv = [job["script"], *job["arguments"]]
    sys.path[0] = os.path.dirname(job["script"])
    runpy.run_path(job["script"], run_name="__main__")


def main():
    import anthropic  # noqa: F401
    import rich.console  # noqa: F401
    import rich.markdown  # noqa: F401

    jobs, running, codes = json.load(sys.stdin), {}, {}
    while jobs or running:
        if jobs and len(running) < TOGETHER:
            job = jobs.pop(0)
            if not (child := os.fork()):
                return play(job)
            running[child] = job["script"]
        else:
            child, status = os.wait()
            codes[running.pop(child)] = os.waitstatus_to_exitcode(status)
    print(json.dumps(codes))


main()
