"""The lessons: what they show is what the files hold and the programs print, and every link leads somewhere."""

import re
import shutil
import sys
from pathlib import Path

import pytest

from program import Program
from test_architecture import code_lines, functions

ROOT = Path(__file__).resolve().parent.parent
PAGES = [ROOT / "README.md", *sorted((ROOT / "docs").glob("*.md"))]
LESSONS = [page for page in PAGES if re.match(r"s\d\d_|core|offline", page.name)]
BUILDER = sorted((ROOT / "docs").glob("*.py"))
BUDGETS = {"build": 265, "play": 150, "source": 100}  # code lines
LONGEST_FUNCTION = 28  # lines with its docstring
SECTIONS = ["The pain", "The idea", "The mechanism", "What changed", "The cost", "In the real product", "Try it",
            "Exercises", "Where next"]
ONLY_OF_SESSIONS = {"What changed", "Exercises"}
needs_linux = pytest.mark.skipif(sys.platform != "linux", reason="what commands print differs between systems")


def ids(page):
    return page.stem


def builder(root, *arguments):
    """`docs/build.py` in a tree: its exit code and what it says."""
    code, out, err = Program(root / "docs" / "build.py", *arguments, folder=root).ended(180)
    return code, out + err


def written(page):
    """A page without what the builder fills in between its marks, and without its diagrams."""
    filled = re.compile(r"(<!-- (?!end).*? -->\n\n).*?(\n\n<!-- end -->)", re.DOTALL)
    return without_fences(filled.sub(r"\1\2", page.read_text(encoding="utf-8")))


def without_fences(text):
    return re.sub(r"```.*?```", "", text, flags=re.DOTALL)


@pytest.fixture
def tree(tmp_path):
    """A copy of what the builder reads, without its pages."""
    for path in ROOT.glob("*.py"):
        shutil.copy(path, tmp_path)
    shutil.copytree(ROOT / "skills", tmp_path / "skills")
    shutil.copytree(ROOT / "docs", tmp_path / "docs", ignore=shutil.ignore_patterns("*.md", "__pycache__"))
    (tmp_path / "README.md").write_text("# None\n")
    return tmp_path


@needs_linux
def test_every_lesson_shows_what_the_program_gives_now():
    assert builder(ROOT, "--check") == (0, "")


@needs_linux
def test_a_changed_line_of_a_session_makes_the_check_name_the_page_and_the_mark(tree):
    for name in ("make_agent", "definitions"):
        (tree / "docs" / f"{name}.md").write_text(f"# One\n\n<!-- code: s02_tool_use.{name} -->\n<!-- end -->\n")
    assert builder(tree)[0] == 0
    assert builder(tree, "--check") == (0, "")
    session = tree / "s02_tool_use.py"
    session.write_text(session.read_text().replace("| core.registry(outline_tool(workspace))", "| {}"))
    code, said = builder(tree, "--check")
    assert code == 1 and "docs/make_agent.md:3: <!-- code: s02_tool_use.make_agent --> differs" in said
    assert "definitions" not in said


@needs_linux
def test_a_run_that_prints_something_else_or_fails_and_a_name_that_is_gone_are_named(tree):
    printed = "python s01_agent_loop.py --yes -p 'bash echo $((6*7)) ;; say Done.'"
    shown = f"```text\n$ {printed}\n  ● bash  echo $((6*7))\n    %s\nDone.\n```"
    marks = [f"<!-- run: {printed} -->\n\n{shown % 42}", f"<!-- run: {printed} -->\n\n{shown % 41}",
             "<!-- run: python s01_agent_loop.py --max-turns 0 -->", "<!-- code: s02_tool_use.nobody -->",
             "<!-- cod: core -->"]
    for number, mark in enumerate(marks):
        (tree / "docs" / f"page{number}.md").write_text(f"{mark}\n\n<!-- end -->\n")
    code, said = builder(tree, "--check")
    told = [line for line in said.splitlines() if line.startswith("docs/page")]
    wanted = ["docs/page1.md:1:.*differs", "docs/page2.md:1:.*exit code 2.*--max-turns must be at least 1",
              "docs/page3.md:1:.*s02_tool_use.py has no nobody", "docs/page4.md:1:.*there is no mark 'cod'"]
    assert code == 1 and len(told) == len(wanted), said
    assert all(map(re.match, wanted, told)), said


@needs_linux
@pytest.mark.parametrize("text, what", [
    ("a <!-- figure: lines core -->", "figure: lines core --> is not closed"),
    ("<!-- end -->", "closes no mark"),
    ("<!-- figure: lines core --> <!-- end -->", "must not begin its line")])
def test_a_page_that_cannot_be_read_is_named(tree, text, what):
    (tree / "docs" / "page.md").write_text(f"# One\n{text}\n")
    code, said = builder(tree, "--check")
    assert code == 1 and said.startswith("docs/page.md:2: ") and what in said


@pytest.mark.parametrize("page", LESSONS, ids=ids)
def test_a_lesson_has_its_sections_in_order(page):
    found = re.findall(r"^## (.+)$", written(page), re.MULTILINE)
    session = re.match(r"s\d\d_", page.name)
    assert found == [name for name in SECTIONS if session or name not in ONLY_OF_SESSIONS]


@pytest.mark.parametrize("page", LESSONS, ids=ids)
def test_a_lesson_has_one_diagram_a_run_code_and_a_source_and_takes_less_than_an_hour(page):
    text = page.read_text(encoding="utf-8")
    assert text.count("```mermaid") == 1
    assert "<!-- run: " in text and "<!-- code: " in text and "](https://" in text
    assert 600 <= len(written(page).split()) <= 1_500


@pytest.mark.parametrize("page", [page for page in LESSONS if page.name[0] == "s"], ids=ids)
def test_a_lesson_of_a_session_shows_its_change_and_its_exercises(page):
    text = page.read_text(encoding="utf-8")
    assert re.search(rf"<!-- changed: {page.name[:3]}( \(source\))? -->", text) and f"<!-- exercises: {page.name[:3]} -->" in text


def anchors(page):
    """The anchors of a page's headings, as code hosts make them."""
    headings = re.findall(r"^#+ (.+)$", without_fences(page.read_text(encoding="utf-8")), re.MULTILINE)
    return {re.sub(r"[^\w\- ]", "", heading.lower()).strip().replace(" ", "-") for heading in headings}


@pytest.mark.parametrize("page", PAGES, ids=ids)
def test_every_link_leads_to_a_file_a_heading_or_a_line(page):
    text = without_fences(page.read_text(encoding="utf-8"))
    for target in re.findall(r"\]\(([^)\s]+)\)", text):
        if re.match(r"https?:", target):
            continue
        name, _, anchor = target.partition("#")
        file = (page.parent / name).resolve() if name else page
        assert file.exists() and file.is_relative_to(ROOT), target
        if lines := re.fullmatch(r"L(\d+)(?:-L(\d+))?", anchor):
            assert int(lines[2] or lines[1]) <= len(file.read_text(encoding="utf-8").splitlines()), target
        elif anchor:
            assert anchor in anchors(file), target


def test_every_page_is_in_the_index():
    index = (ROOT / "docs" / "index.md").read_text(encoding="utf-8")
    assert [page.name for page in PAGES[1:] if page.name != "index.md" and f"]({page.name})" not in index] == []


def test_a_comment_behind_code_is_no_part_of_the_mark_above_it(tmp_path, monkeypatch):
    monkeypatch.syspath_prepend(ROOT / "docs")
    from source import exercises_in

    (tmp_path / "s.py").write_text("def f(a):\n    # exercise 1.9: do\n    # hint: so\n    a += 1  # why\n    return a\n")
    assert [one["lines"] for one in exercises_in(tmp_path / "s.py")] == [[2, 3]]


@pytest.mark.parametrize("path", BUILDER, ids=ids)
def test_the_builder_keeps_its_budget(path):
    assert code_lines(path) <= BUDGETS[path.stem]
    assert [one.name for one in functions(path) if one.end_lineno - one.lineno >= LONGEST_FUNCTION] == []
