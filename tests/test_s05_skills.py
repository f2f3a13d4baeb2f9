"""Skills: every header that occurs loads or is reported, the prompt holds names only, bodies come when asked for."""

import os
import re
import subprocess
import sys
from pathlib import Path

import pytest

import core
import s05_skills
from s05_skills import (
    DESCRIPTION_LENGTH, LISTING_LIMIT, SKILL_LIMIT, Skill, Skilled, SkillError, build_listing, nearest,
    parse_skill, show_skills)

ROOT = Path(__file__).resolve().parent.parent
SHIPPED = sorted((ROOT / "skills").iterdir())
PDF_TOOLS = ROOT / "skills" / "pdf" / "scripts" / "pdf_tools.py"
posix = pytest.mark.skipif(os.name == "nt", reason="links, pipes and shell scripts of POSIX")
PLAIN = "---\nname: notes\ndescription: Write notes.\n---\n# Notes\n\nBe short.\n"


def put(root, name, text=None, description="Does things.", folder="skills"):
    """A skill's SKILL.md below a root; returns its path."""
    file = root / folder / name / "SKILL.md"
    file.parent.mkdir(parents=True, exist_ok=True)
    text = f"---\nname: {name}\ndescription: {description}\n---\nBody of {name}.\n" if text is None else text
    file.write_bytes(text if isinstance(text, bytes) else text.encode())
    return file


def call(agent, tool, /, **given):
    return agent.run_tool({"id": "toolu_1", "name": tool, "input": given})


def notices(events):
    return [event["text"] for event in events if event["kind"] == "notice"]


@pytest.fixture
def home(monkeypatch):
    """The folder that HOME points to: the fixture clean_environment made it."""
    monkeypatch.setenv("USERPROFILE", os.environ["HOME"])  # what Windows calls it
    return Path(os.environ["HOME"])


# ---------------------------------------------------------------- headers


LOADED = {  # what stands in SKILL.md: the description and the body that must come of it
    "plain": (PLAIN, "Write notes.", "# Notes\n\nBe short."),
    "B043 CRLF": (PLAIN.replace("\n", "\r\n"), "Write notes.", "# Notes\n\nBe short."),
    "old Mac line ends": (PLAIN.replace("\n", "\r"), "Write notes.", "# Notes\n\nBe short."),
    "byte order mark": ("\ufeff" + PLAIN, "Write notes.", "# Notes\n\nBe short."),
    "BOM and CRLF": ("\ufeff" + PLAIN.replace("\n", "\r\n"), "Write notes.", "# Notes\n\nBe short."),
    "B043 fence ends the file": ("---\nname: notes\ndescription: Write notes.\n---", "Write notes.", ""),
    "spaces behind the fences": ("--- \nname: notes\ndescription: A.\n---\t\nB", "A.", "B"),
    "a rule in the body": ("---\nname: notes\ndescription: A.\n---\nB\n\n---\n\nC", "A.", "B\n\n---\n\nC"),
    "B040 colon": ("---\nname: notes\ndescription: Helps with releases: notes, tags\n---\nB",
                   "Helps with releases: notes, tags", "B"),
    "colon in a continuation": ("---\nname: notes\ndescription: Helps with\n  releases: notes,\n  tags\n---\nB",
                                "Helps with releases: notes, tags", "B"),
    "double quotes": ('---\nname: "notes"\ndescription: "Releases: \\"notes\\""\n---\nB', 'Releases: "notes"', "B"),
    "single quotes": ("---\nname: 'notes'\ndescription: 'It''s: so'\n---\nB", "It's: so", "B"),
    "an apostrophe in single quotes": ("---\nname: notes\ndescription: 'It's good'\n---\nB", "It's good", "B"),
    "an unclosed quote": ('---\ndescription: "Write notes\nname: notes\n---\nB', '"Write notes', "B"),
    "text behind a quote": ('---\nname: notes\ndescription: "Notes" and more\n---\nB', '"Notes" and more', "B"),
    "folded": ("---\nname: notes\ndescription: >\n  Write\n  notes.\n---\nB", "Write notes.", "B"),
    "folded and stripped": ("---\nname: notes\ndescription: >-\n  Write\n\n  notes.\n---\nB", "Write notes.", "B"),
    "literal": ("---\nname: notes\ndescription: |\n  Write\n  notes: now\n---\nB", "Write notes: now", "B"),
    "plain over lines": ("---\nname: notes\ndescription:\n  Write\n  notes.\n---\nB", "Write notes.", "B"),
    "brackets": ("---\nname: notes\ndescription: [BETA] Write notes\n---\nB", "[BETA] Write notes", "B"),
    "a list": ("---\nname: notes\ndescription:\n- write\n- notes\n---\nB", "- write - notes", "B"),
    "two hints in brackets": ("---\nname: notes\ndescription: A.\nargument-hint: [file] [line]\n---\nB", "A.", "B"),
    "an asterisk": ("---\nname: notes\ndescription: *All* notes\n---\nB", "*All* notes", "B"),
    "an at sign": ("---\nname: notes\ndescription: @mention people\n---\nB", "@mention people", "B"),
    "a tab after the colon": ("---\nname:\tnotes\ndescription:\tWrite notes.\n---\nB", "Write notes.", "B"),
    "a number": ("---\nname: notes\ndescription: 007\n---\nB", "007", "B"),
    "a comment": ("---\n# of notes\nname: notes # short\ndescription: A # B\n---\nC", "A", "C"),
    "blank lines": ("---\n\nname: notes\n\ndescription: A.\n\n---\n\n\nB\n\n", "A.", "B"),
    "not ASCII": ("---\nname: notes\ndescription: Über – 概要 🗒\n---\nB", "Über – 概要 🗒", "B"),
    "other keys": ("---\nname: notes\nmetadata:\n  author: me\n  tags: [a, b]\nallowed-tools: Read, Bash(git log:*)\n"
                   "description: A.\nlicense: MIT\n---\nB", "A.", "B"),
    "JSON as a value": ('---\nname: notes\ndescription: A.\nmetadata: {\n  "a": 1\n}\n---\nB', "A.", "B"),
    "quoted keys": ('---\n"name": notes\n\'description\': A.\n---\nB', "A.", "B"),
    "escape characters": ('---\nname: notes\ndescription: "A\\e[31m\\u202eB"\n---\nC', "A [31m B", "C"),
}
REPORTED = {  # what stands in SKILL.md: the line and the words of the report
    "empty": ("", 1, "no front matter"),
    "no front matter": ("# Notes\n\nBe short.\n", 1, "no front matter"),
    "a blank line first": ("\n" + PLAIN, 1, "no front matter"),
    "no closing fence": ("---\nname: notes\ndescription: A.\n", 1, "never closed"),
    "an empty header": ("---\n---\nB", 1, "name is missing"),
    "prose as header": ("---\nname: notes\nAbout notes.\n---\nB", 3, "'About notes.' is not `key: value`"),
    "no space after the colon": ("---\nname: notes\ndescription: A.\nallowed-tools:Read\n---\nB", 4, "mind the space"),
    "no name": ("---\ndescription: A.\n---\nB", 1, "name is missing"),
    "no description": ("---\nname: notes\n---\nB", 1, "description has 0 characters"),
    "a blank description": ('---\nname: notes\ndescription: " "\n---\nB', 3, "description has 0 characters"),
    "a long description": (f"---\nname: notes\ndescription: {'x' * (DESCRIPTION_LENGTH + 1)}\n---\nB", 3,
                           "1,025 characters"),
    "another folder's name": ("---\nname: other\ndescription: A.\n---\nB", 2, "must equal the name of its folder"),
    "capitals": ("---\nname: Notes\ndescription: A.\n---\nB", 2, "a-z"),
    "spaces in the name": ("---\nname: my notes\ndescription: A.\n---\nB", 2, "a-z"),
    "B044 a path as name": ("---\nname: ../notes\ndescription: A.\n---\nB", 2, "a-z"),
    "a hyphen at the end": ("---\nname: notes-\ndescription: A.\n---\nB", 2, "a-z"),
    "a long name": (f"---\nname: {'x' * 65}\ndescription: A.\n---\nB", 2, "1 to 64"),
    "a key twice": ("---\nname: notes\nallowed-tools: Read\nallowed-tools: Bash\ndescription: A.\n---\nB", 4, "twice"),
    "B041 rights unreadable": ("---\nname: notes\ndescription: A: B\nallowed-tools: [Read\n---\nB", 4, "allowed-tools"),
    "a tab as indentation": ("---\nname: notes\ndescription: A.\nmetadata:\n\ta: 1\n---\nB", 4, "metadata"),
    "an impossible date": ("---\nname: notes\ndescription: A.\nupdated: 2026-13-45\n---\nB", 4, "updated"),
    "a Python object": ("---\nname: notes\ndescription: A.\nmetadata: !!python/name:os.system\n---\nB", 4, "metadata"),
    "UTF-16": (PLAIN.encode("utf-16"), 1, "not UTF-8"),
    "Latin-1": ("---\nname: notes\ndescription: é\n---\nB".encode("latin-1"), 3, "not UTF-8"),
}


@pytest.mark.parametrize("text, description, body", LOADED.values(), ids=LOADED.keys())
def test_a_header_as_people_write_it_is_loaded(text, description, body):
    """B040, B043 among them."""
    skill = parse_skill(text.encode(), Path("notes"))
    assert (skill.name, skill.description, skill.body) == ("notes", description, body)


@pytest.mark.parametrize("text, line, words", REPORTED.values(), ids=REPORTED.keys())
def test_a_header_that_cannot_be_loaded_is_reported_with_its_line(text, line, words):
    """B041 and a name of B044 among them."""
    with pytest.raises(SkillError) as raised:
        parse_skill(text if isinstance(text, bytes) else text.encode(), Path("notes"))
    assert raised.value.args[0] == line and words in raised.value.args[1]


def test_other_keys_are_kept_whole_beside_a_bad_description():
    """B041: `allowed-tools` must not get lost when the description is no valid YAML."""
    for description in ("a: b", '"unclosed', "[x] y", "'it's'"):
        text = f"---\nname: notes\ndescription: {description}\nallowed-tools: Read\nmetadata: {{level: 3}}\n---\n"
        fields = parse_skill(text.encode(), Path("notes")).fields
        assert fields["allowed-tools"] == "Read" and fields["metadata"] == {"level": 3}


@pytest.mark.parametrize("folder", SHIPPED, ids=lambda folder: folder.name)
def test_a_shipped_skill_is_valid_short_and_names_only_files_that_exist(folder):
    skill = parse_skill((folder / "SKILL.md").read_bytes(), folder)
    assert 200 < len(skill.body) and skill.body.count("\n") < 120
    for name in re.findall(r"`((?:scripts|references|assets)/[\w./-]+)`", skill.body):
        assert (folder / name).is_file(), name
    for name in s05_skills.bundled_files(folder):
        assert name in skill.body, f"{name} is bundled but never mentioned"


def test_the_sessions_that_a_shipped_skill_names_exist():
    texts = [file.read_text(encoding="utf-8") for folder in SHIPPED for file in folder.rglob("*.md")]
    names = set(re.findall(r"\bs\d\d_\w+\.py", "".join(texts)))
    assert names and all((ROOT / name).is_file() for name in names)


def test_the_three_promised_skills_are_shipped():
    assert [folder.name for folder in SHIPPED] == ["agent-builder", "code-review", "pdf"]


# ---------------------------------------------------------------- choosing and listing


def skills(*names, description="Does things."):
    return [Skill(name, description, "", Path(name), {}) for name in names]


def test_of_equal_names_the_first_wins_and_the_others_are_told():
    near, far, other = *skills("pdf", "pdf"), *skills("abc")
    chosen, hidden = nearest([near, far, other])
    assert list(chosen) == ["abc", "pdf"] and chosen["pdf"] is near and hidden == [(far, near)]


def test_the_listing_has_one_line_for_each_skill():
    assert build_listing(skills("a", "b")).splitlines()[1:] == ["- a: Does things.", "- b: Does things."]
    assert build_listing([]) == ""


def test_over_its_budget_the_listing_names_the_rest():
    """Descriptions from the top as long as they fit, then names, then a mark; never more than the limit."""
    many = skills(*(f"skill-{number:03}" for number in range(200)), description="x" * 200)
    text = build_listing(many)
    assert len(text) <= LISTING_LIMIT and "list_skills" in text
    assert text.count("x" * 200) > 5 and all(skill.name in text for skill in many)
    for limit in (300, 1_000, 3_000, 20_000, 100_000):
        assert len(build_listing(many, limit)) <= limit
    assert build_listing(many, 1_000).endswith(", ...")


# ---------------------------------------------------------------- the agent


def test_the_prompt_holds_names_and_descriptions_but_no_body(workspace, stand_in):
    for name in ("beta", "alpha"):
        put(workspace.root, name)
    agent, messages = Skilled(workspace), [{"role": "user", "content": "say Hello."}]
    agent.run(messages)
    system = stand_in.requests[-1]["body"]["system"]
    system = core.text_of(system)
    assert system.endswith("\n- alpha: Does things.\n- beta: Does things.") and "Body of" not in system


def test_without_skills_the_prompt_is_that_of_the_agent_below(workspace):
    agent = Skilled(workspace)
    assert agent.request([])["system"] == super(Skilled, agent).request([])["system"]
    assert call(agent, "list_skills")["content"] == "(none)" and show_skills(agent, [], "") == "there are no skills"


def test_of_very_many_skills_the_list_names_each_one_and_is_not_clipped(workspace):
    agent, many = Skilled(workspace), skills(*(f"skill-{number:03}" for number in range(500)), description="x" * 200)
    agent.skills = {skill.name: skill for skill in many}
    text = call(agent, "list_skills")["content"]
    assert "left out" not in text and "\nBy name only: skill-" in text and all(skill.name in text for skill in many)


def test_a_body_comes_with_its_folder_and_the_names_of_its_files(workspace, stand_in):
    folder = put(workspace.root, "pdf").parent
    (folder / "scripts").mkdir()
    for name in ("scripts/run.py", "forms.md", ".hidden"):
        (folder / name).write_text("x\ny\n")
    messages = [{"role": "user", "content": "load_skill pdf ;; read skills/pdf/scripts/run.py ;; say Done."}]
    Skilled(workspace).run(messages)
    loaded, read = messages[2]["content"][0]["content"], messages[4]["content"][0]["content"]
    assert loaded == ('<skill name="pdf" folder="skills/pdf">\nBody of pdf.\n\nBundled files (use read):\n'
                      "skills/pdf/forms.md\nskills/pdf/scripts/run.py\n</skill>")
    assert read == "1\tx\n2\ty"


def test_many_bundled_files_are_counted(workspace):
    folder = put(workspace.root, "pdf").parent
    for number in range(70):
        (folder / f"{number:02}.txt").write_text("")
    assert "49.txt\nand 20 more\n</skill>" in call(Skilled(workspace), "load_skill", name="pdf")["content"]


def test_the_nearest_folder_wins_and_the_hidden_skill_is_reported(workspace, home, events):
    put(workspace.root, "pdf", description="Near.")
    middle = put(workspace.root, "pdf", description="Middle.", folder=".claude/skills")
    far = put(home, "pdf", description="Far.", folder=".claude/skills")
    put(home, "own", folder=".claude/skills")
    agent = Skilled(workspace)
    assert call(agent, "list_skills")["content"].endswith(":\n- own: Does things.\n- pdf: Near.")
    assert notices(events) == [f"{workspace.name(middle)}:1: hidden by the nearer skills/pdf",
                               f"{far.as_posix()}:1: hidden by the nearer skills/pdf"]


def test_a_skill_of_the_home_is_loaded_with_its_whole_path(workspace, home):
    folder = put(home, "own", folder=".claude/skills").parent
    (folder / "more.md").write_text("More.")
    content = call(Skilled(workspace), "load_skill", name="own")["content"]
    assert f'folder="{folder.as_posix()}"' in content
    assert f"(outside the workspace: use bash):\n{folder.as_posix()}/more.md" in content


def test_the_home_as_workspace_hides_nothing_from_itself(home, events):
    put(home, "own", folder=".claude/skills")
    assert list(Skilled(core.Workspace(home)).skills) == ["own"] and notices(events) == []


def test_problems_are_told_once_and_shown_by_the_command(workspace, events):
    """B040: named with file and line, and other skills are unaffected."""
    put(workspace.root, "good")
    put(workspace.root, "bad", "---\nname: bad\nallowed-tools: [Read\ndescription: A.\n---\nB")
    agent = Skilled(workspace)
    agent.request([])
    call(agent, "list_skills")
    (problem,) = notices(events)
    assert problem.startswith("skills/bad/SKILL.md:3: allowed-tools") and problem.endswith("not loaded")
    shown = show_skills(agent, [], "")
    assert shown.startswith("skills/good\n    Does things.\n") and f"! {problem}" in shown


@posix
def test_what_is_no_skill_harms_nothing(workspace, home, events):
    """Pipes, folders, links to nowhere and to themselves, other names, files too large: reported, never fatal."""
    root = workspace.root / "skills"
    put(workspace.root, "good")
    put(workspace.root, "large", b"x" * (SKILL_LIMIT + 1))
    for name in ("pipe", "folder", "other-case", "code", ".git"):
        (root / name).mkdir()
    os.mkfifo(root / "pipe" / "SKILL.md")
    (root / "folder" / "SKILL.md").mkdir()
    (root / "other-case" / "Skill.md").write_text(PLAIN)
    (root / "code" / "main.py").write_text("")
    (root / "README.md").write_text("About skills.")
    (root / "nowhere").symlink_to(root / "none")
    (root / "loop").symlink_to(root / "loop")
    (home / ".claude").mkdir()
    (home / ".claude" / "skills").write_text("a file, not a folder")
    agent = Skilled(workspace)
    assert list(agent.skills) == ["good"]
    assert [re.match(r"skills/([\w-]+)/SKILL.md:\d: ", text)[1] for text in notices(events)] == [
        "folder", "large", "loop", "nowhere", "other-case", "pipe"]


def test_an_edited_skill_counts_from_the_next_turn(workspace, stand_in, events):
    file = put(workspace.root, "pdf", description="Old.")
    agent = Skilled(workspace, permissions=core.Permissions(mode="yes"))
    messages = [{"role": "user", "content": "edit skills/pdf/SKILL.md :: Old. :: New. ;; say Done."}]
    agent.run(messages)
    before, after = (core.text_of(request["body"]["system"]) for request in stand_in.requests[-2:])
    assert before.endswith("- pdf: Old.") and after.endswith("- pdf: New.")
    file.write_text("broken")
    assert "pdf" not in agent.request([])["system"] and len(notices(events)) == 1
    result = call(agent, "load_skill", name="pdf")
    assert result["is_error"] and "skills/pdf/SKILL.md:1: there is no front matter" in result["content"]
    file.unlink()
    assert agent.request([])["system"] == super(Skilled, agent).request([])["system"]


def test_while_nothing_changes_the_prompt_stays_the_same_and_no_file_is_read(workspace):
    file = put(workspace.root, "pdf")
    agent = Skilled(workspace)
    first, kept = agent.request([]), agent.skills
    assert agent.request([]) == first and agent.skills is kept
    os.utime(file)  # touched, not changed
    assert agent.request([]) == first


@pytest.mark.parametrize("name", ["../outside", "/etc", "pdf/..", "../skills/pdf", "pdf/SKILL.md", "..", "",
                                  "C:\\pdf", "pdf\n"])
def test_only_names_are_loaded_never_paths(workspace, name):
    """B044"""
    put(workspace.root, "pdf")
    put(workspace.root, "outside", folder="")
    result = call(Skilled(workspace), "load_skill", name=name)
    assert result["is_error"] and "never a path" in result["content"] and "Body" not in result["content"]


def test_a_file_cannot_be_asked_for_along_with_a_skill(workspace):
    """B044"""
    put(workspace.root, "ok")
    result = call(Skilled(workspace), "load_skill", name="ok", file="../../.env")
    assert result["is_error"] and "file is unknown" in result["content"]


def test_a_mistyped_name_is_answered_with_similar_ones(workspace):
    put(workspace.root, "code-review")
    content = call(Skilled(workspace), "load_skill", name="code-reviews")["content"]
    assert content == "load_skill: there is no skill 'code-reviews'; similar: code-review"


@posix
def test_a_linked_skill_folder_is_loaded(workspace, tmp_path):
    """B044: a symlinked skill inside the root still loads, also from outside the workspace."""
    inside = put(workspace.root, "shared", folder="lib").parent
    outside = put(tmp_path, "foreign", folder="elsewhere").parent
    (workspace.root / "skills").mkdir()
    (workspace.root / "skills" / "shared").symlink_to(inside)
    (workspace.root / "skills" / "foreign").symlink_to(outside)
    agent = Skilled(workspace)
    assert 'folder="lib/shared"' in call(agent, "load_skill", name="shared")["content"]
    assert f'folder="{outside}"' in call(agent, "load_skill", name="foreign")["content"]


def test_skills_add_two_tools_that_only_read(workspace):
    agent = Skilled(workspace)
    assert list(agent.tools) == [*core.BASE_TOOLS, "load_skill", "list_skills"]
    assert all(agent.tools[name].read_only for name in ("load_skill", "list_skills"))
    assert agent.tools["load_skill"].input_schema["required"] == ["name"]


def test_the_demonstration_shows_a_smaller_prompt(workspace, tmp_path):
    pasted, skilled = s05_skills.pasted(workspace), Skilled(workspace)
    assert len(skilled.request([])["system"]) * 5 < len(pasted.request([])["system"])


# ---------------------------------------------------------------- the script of the skill pdf


def pdf_tools(folder, *words, path="", site=False):
    """Runs the script in a folder; without site no installed package can be imported."""
    command = [sys.executable, *([] if site else ["-I", "-S"]), PDF_TOOLS, *words]
    environment = {**os.environ, "PATH": str(path)}
    return subprocess.run(command, cwd=folder, env=environment, capture_output=True, encoding="utf-8", check=False)


def fake(folder, name, script):
    """A program that stands for one that may not be installed here."""
    folder.mkdir(exist_ok=True)
    (folder / name).write_text(f"#!/bin/sh\n{script}\n")
    (folder / name).chmod(0o755)
    return folder


def test_with_nothing_installed_the_script_says_what_is_missing_and_how_to_get_it(tmp_path):
    (tmp_path / "a.pdf").write_bytes(b"%PDF-1.4\n")
    check, read = pdf_tools(tmp_path, "check"), pdf_tools(tmp_path, "read", "a.pdf")
    assert check.returncode == 0 and "read   NOT POSSIBLE" in check.stdout and "make   with built-in" in check.stdout
    assert read.returncode == 3 and read.stdout == ""
    assert "nothing installed here can read" in read.stderr and "apt install poppler-utils" in read.stderr


def test_plain_text_becomes_a_valid_pdf_without_any_program(tmp_path):
    text = "Café (1) \\ done\n日本\n" + "x" * 200 + "\nline\n" * 100 + "\fLast"
    (tmp_path / "a.txt").write_text(text, encoding="utf-8")
    made = pdf_tools(tmp_path, "make", "a.txt", "a.pdf")
    assert made.returncode == 0 and "made with built-in" in made.stdout and "shown as ?: 日本" in made.stderr
    data = (tmp_path / "a.pdf").read_bytes()
    start = int(re.search(rb"startxref\n(\d+)\n%%EOF\n$", data)[1])
    offsets = [int(line[:10]) for line in data[start:].split(b"\n")[3:] if line.endswith(b" n ")]
    assert all(data[offset:].startswith(b"%d 0 obj" % number) for number, offset in enumerate(offsets, 1))
    assert b"(Caf\xe9 \\(1\\) \\\\ done) '" in data and b"(Last) '" in data
    assert f"Pages: {data.count(b'/Contents')}" in pdf_tools(tmp_path, "info", "a.pdf").stdout


def test_an_existing_file_is_kept_unless_forced(tmp_path):
    (tmp_path / "a.txt").write_text("New")
    (tmp_path / "a.pdf").write_text("Old")
    refused = pdf_tools(tmp_path, "make", "a.txt", "a.pdf")
    assert refused.returncode == 1 and "exists" in refused.stderr and (tmp_path / "a.pdf").read_text() == "Old"
    assert pdf_tools(tmp_path, "make", "a.txt", "a.pdf", "--force").returncode == 0
    assert pdf_tools(tmp_path, "make", "a.txt", "a.txt", "--force").returncode == 1


def test_other_kinds_need_a_program_and_bad_words_are_usage_errors(tmp_path):
    (tmp_path / "a.html").write_text("<h1>Hi</h1>")
    (tmp_path / "a.pdf").write_bytes(b"%PDF-1.4\n")
    html = pdf_tools(tmp_path, "make", "a.html", "b.pdf")
    assert html.returncode == 3 and "libreoffice" in html.stderr and not (tmp_path / "b.pdf").exists()
    for words in (["read", "a.pdf", "--pages", "3-1"], ["read", "a.pdf", "--tool", "vim"], ["dance"], []):
        assert pdf_tools(tmp_path, *words).returncode == 2
    assert pdf_tools(tmp_path, "read", "none.pdf").returncode == 1


@posix
def test_installed_programs_are_found_and_called(tmp_path):
    programs = fake(tmp_path / "bin", "pdftotext", 'echo "pdftotext $*"')
    fake(programs, "qpdf", 'for last; do :; done; echo "qpdf $*" > "$last"; exit 3')  # done, with warnings
    fake(programs, "soffice", "while [ $1 != --outdir ]; do shift; done; echo made > $2/x.pdf")
    (tmp_path / "a.pdf").write_bytes(b"%PDF-1.4\n")
    (tmp_path / "a.docx").write_text("x")
    read = pdf_tools(tmp_path, "read", "a.pdf", "--pages", "1-3, 7", path=programs)
    assert [line.split(" -f ")[1] for line in read.stdout.splitlines()] == ["1 -l 3 a.pdf -", "7 -l 7 a.pdf -"]
    assert pdf_tools(tmp_path, "split", "a.pdf", "b.pdf", "--pages", "2,1", path=programs).returncode == 0
    assert (tmp_path / "b.pdf").read_text() == "qpdf a.pdf --pages . 2,1 -- b.pdf\n"
    assert "made with libreoffice" in pdf_tools(tmp_path, "make", "a.docx", "c.pdf", path=programs).stdout
    assert (tmp_path / "c.pdf").read_text() == "made\n"


@posix
def test_a_failing_program_and_pages_without_text_are_explained(tmp_path):
    programs = fake(tmp_path / "bin", "pdftotext", "echo broken file >&2; exit 1")
    (tmp_path / "a.pdf").write_bytes(b"%PDF-1.4\n")
    failed = pdf_tools(tmp_path, "read", "a.pdf", path=programs)
    assert failed.returncode == 1 and "pdftotext ended with 1: broken file" in failed.stderr
    fake(programs, "pdftotext", "printf '\\f'")
    assert "ocrmypdf" in pdf_tools(tmp_path, "read", "a.pdf", path=programs).stderr


def test_what_make_writes_real_libraries_read(tmp_path):
    pytest.importorskip("pypdf")
    (tmp_path / "a.txt").write_text("One\fTwo\fThree")
    pdf_tools(tmp_path, "make", "a.txt", "a.pdf")
    assert pdf_tools(tmp_path, "split", "a.pdf", "b.pdf", "--pages", "3,1", site=True).returncode == 0
    assert pdf_tools(tmp_path, "read", "b.pdf", site=True).stdout == "Three\fOne\n"
