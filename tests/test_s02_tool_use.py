"""The registry: a tool is a function and an entry, and the loop of s01 answers whatever is asked of it."""

import ast

import pytest

import core
import s02_tool_use
import talk
from s01_agent_loop import Agent
from s02_tool_use import definitions, make_agent, outline_tool

SOURCE = '''import os


class Door:
    """A docstring."""

    def open(self):
        def inner():
            pass
        return inner


if os.name == "nt":
    async def knock():
        pass
'''


@pytest.fixture
def agent(workspace, stand_in):
    return make_agent(workspace, permissions=core.Permissions(mode="yes"))


def results(agent, script):
    return talk.results(talk.played(agent, script))


def test_definitions_are_listed_with_their_lines_and_nesting():
    assert definitions(ast.parse(SOURCE)) == [
        "class Door  lines 4-10", "  def open  lines 7-10", "    def inner  lines 8-9", "def knock  lines 14-15"]


def test_outline_reads_a_file_of_the_workspace(agent, workspace):
    (workspace.root / "door.py").write_text(SOURCE)
    assert results(agent, "outline door.py")[0]["content"].startswith("class Door  lines 4-10\n  def open")


@pytest.mark.parametrize("content, words", [(b"x = 1\n", "no class and no function"), (b"def (", "not valid Python"),
                                            (b"x = '\x00'", "not valid Python"), (b"\xff\xfe", "not valid Python")])
def test_outline_answers_what_it_cannot_outline(workspace, content, words):
    (workspace.root / "odd.py").write_bytes(content)
    tool = outline_tool(workspace)
    call = {"id": "t", "name": "outline", "input": {"path": "odd.py"}}
    assert words in core.dispatch(call, core.registry(tool), core.Permissions())["content"]


def test_outline_of_a_file_outside_or_missing_is_refused(agent):
    outside, missing = results(agent, "outline ../x.py ++ outline none.py")
    assert "outside the workspace" in outside["content"] and "does not exist" in missing["content"]


def test_the_loop_is_the_one_of_s01(agent):
    assert type(agent) is Agent and list(agent.tools) == [*core.BASE_TOOLS, "outline"]


def test_a_tool_is_one_function_and_one_entry(agent):
    def shout(text: str, times: int = 1) -> str:
        """Say it loudly."""
        return text.upper() * times

    agent.tools |= core.registry(core.Tool.of(shout, read_only=True))
    assert [result["content"] for result in results(agent, "shout hey :: 2 ;; shout ho")] == ["HEYHEY", "HO"]


def test_an_unknown_tool_and_a_bad_input_are_answered_with_what_would_fit(agent):
    unknown, bad = results(agent, 'call teleport {"to": "moon"} ++ read {"file": "x", "start_line": "two"} ;; say Done.')
    assert "no tool 'teleport'" in unknown["content"] and "outline" in unknown["content"] and unknown["is_error"]
    for words in ("path is missing", "file is unknown", "start_line must be integer", "Its fields: path: string"):
        assert words in bad["content"]


def test_the_same_edit_fails_through_sed_and_succeeds_through_edit(agent, workspace):
    (workspace.root / "door.py").write_text(s02_tool_use.GREETING)
    results(agent, s02_tool_use.DEMO[0]["script"])
    assert "turn\"" in (workspace.root / "door.py").read_text()
    results(agent, s02_tool_use.DEMO[1]["script"])
    assert "It's {name}'s go" in (workspace.root / "door.py").read_text()


def test_definitions_sent_to_the_model_say_what_they_are(agent):
    assert all(tool["description"] and tool["input_schema"]["type"] == "object" for tool in agent.request([])["tools"])
