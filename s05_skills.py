"""s05 · skills: names and descriptions always in the prompt, the instructions only when they are needed

Pain    Know-how has to be told. Pasted into the system prompt, each guide is paid for with every
        request, also by a question that needs none, and the model reads past what matters.
        `python s05_skills.py --demo` pastes the guides of skills/ first, and shows what that weighs.
Idea    Disclose it in three levels. A skill is a folder with a SKILL.md: a header and a body.

            skills/pdf/SKILL.md            what the model sees       when
              ---
              name: pdf
              description: Read, ...  ───► - pdf: Read, ...          always: one line
              ---
              # Work with PDFs ...    ───► load_skill{name} result  the task fits
            skills/pdf/scripts/...    ───► read, bash                the body says so

        The model decides by the description alone whether to load: it must say when.
        Folders, nearest first: skills/ and .claude/skills/ of the workspace, ~/.claude/skills.
        Of equal names the nearest wins. What cannot be loaded is reported with file and line,
        at the start and by /skills: a skill that silently is not there is the worst fault, since
        the model just works without it.
Change  `request` adds the listing to the system prompt, plus two tools, load_skill and
        list_skills. Before each request the files' times and sizes are compared: an edited
        SKILL.md counts from the next turn; otherwise the prompt stays the same byte for byte, as
        prompt caching wants it.
Cost    One line for each skill with every request, within LISTING_LIMIT; a body once loaded stays
        in the conversation. A skill is text that the model follows, and a cloned repository may
        bring its own: read it as you would read a script. It grants nothing: calls are asked for
        as ever, and `allowed-tools` in a header is kept but opens no door.
Try     list_skills ;; load_skill pdf ;; load_skill ../pdf
        Then /skills, break a header in skills/, and /skills again.
Look for what list_skills shows: that much is in each request. The body of a skill comes once, as a
        result: /context names it among the largest.
Builds on s01_agent_loop.py, s02_tool_use.py (for the demonstration)
"""

import difflib
import os
import re
import shutil
import textwrap
from dataclasses import dataclass
from pathlib import Path

import core
import s02_tool_use
from console import main, one_line
from s01_agent_loop import Agent

LISTING_LIMIT = 8_000  # characters in the system prompt: about 1 % of a window of 200,000 tokens
SKILL_LIMIT = 256_000  # bytes of one SKILL.md; more is no guide but a mistake
FILES_SHOWN = 50  # bundled files named by load_skill
NAME = r"[a-z0-9]+(-[a-z0-9]+)*"  # agentskills.io/specification, as are the two lengths
NAME_LENGTH, DESCRIPTION_LENGTH = 64, 1024
# Keys whose value is prose: when it is no valid YAML, it is taken as written. Any other key may
# limit what the skill may do; guessing at it could widen that, so there the skill is not loaded.
PROSE = ("name", "description", "license", "compatibility", "argument-hint", "when_to_use")
KEY = re.compile(r"""(["']?)(\w[\w.-]*)\1[ \t]*:(?=[ \t\n]|$)""")
LISTING_HEAD = "Skills. When a task fits one of these, call load_skill with its name before you start:"
LISTING_REST = "Without room for a description (list_skills has them): "


class SkillError(Exception):
    """Why a SKILL.md cannot be loaded: args are the line, counted from 1, and the words."""


@dataclass(frozen=True)
class Skill:
    """A loaded SKILL.md. `fields` is its whole header, with keys that mean nothing here."""

    name: str
    description: str
    body: str
    folder: Path
    fields: dict


# ---------------------------------------------------------------- reading one SKILL.md, without I/O


def parse_skill(data: bytes, folder: Path) -> Skill:
    """The skill in the bytes of a folder's SKILL.md, or SkillError with the line at fault."""
    header, body = split_front_matter(data)
    fields, lines = {}, {}
    for line, key, text in header_entries(header):
        if key in fields:
            raise SkillError(line, f"{key} is given twice")
        fields[key], lines[key] = entry_value(line, key, text), line
    name, description = (one_line(fields.get(key) or "", SKILL_LIMIT) for key in ("name", "description"))
    check_name(name, folder.name, lines.get("name", 1))
    if not 1 <= len(description) <= DESCRIPTION_LENGTH:
        raise SkillError(lines.get("description", 1), f"description has {len(description):,} characters; "
                         f"say in 1 to {DESCRIPTION_LENGTH:,} what the skill does and when to use it")
    return Skill(name, description, body, folder, fields)


def split_front_matter(data: bytes) -> tuple[str, str]:
    """Header and body as text with plain newlines, whatever byte order mark and line ends there were."""
    try:
        lines = data.decode("utf-8-sig").replace("\r\n", "\n").replace("\r", "\n").split("\n")
    except UnicodeDecodeError as error:
        raise SkillError(data.count(b"\n", 0, error.start) + 1, "this is not UTF-8; save it so") from error
    fences = [number for number, line in enumerate(lines) if line.rstrip() == "---"]
    if fences[:1] != [0]:
        raise SkillError(1, "there is no front matter: the first line must be ---, the header follows")
    if len(fences) == 1:
        raise SkillError(1, "the front matter is never closed: a line --- must end it")
    return "\n".join(lines[1:fences[1]]), "\n".join(lines[fences[1] + 1:]).strip("\n")


def header_entries(header: str) -> list[tuple[int, str, str]]:
    """(line in the file, key, text) of each top-level key, its continuation lines included.

    Keys are parted before YAML sees them, so that an unclosed quote cannot swallow those behind it.
    """
    entries: list[tuple[int, str, str]] = []
    for number, line in enumerate(header.split("\n"), start=2):
        if key := KEY.match(line):
            entries.append((number, key[2], line))
        elif entries and line[:1] in ("", " ", "\t", "#", "-", "]", "}"):
            entries[-1] = *entries[-1][:2], f"{entries[-1][2]}\n{line}"
        elif line.strip() and not line.startswith("#"):
            raise SkillError(number, f"{line[:40]!r} is not `key: value` (mind the space after the colon)")
    return entries


def entry_value(line: int, key: str, text: str):
    """The value of one header entry by YAML, or for prose its words as they stand."""
    import yaml

    words = " ".join(text[KEY.match(text).end():].split())
    try:
        value = next(iter(yaml.safe_load(text).values()))
    except (yaml.YAMLError, ValueError, LookupError, AttributeError, RecursionError) as error:  # !!bool maybe
        if key not in PROSE:
            raise SkillError(line, f"{key} is not valid YAML: {getattr(error, 'problem', error)}") from error
        return words[1:-1] if re.fullmatch("'.*'|\".*\"", words) else words
    return words if key in PROSE and not isinstance(value, str | None) else value  # the name 007 is no number


def check_name(name: str, folder: str, line: int) -> None:
    """Raises SkillError unless the name is one by the specification and that of its folder."""
    if not re.fullmatch(NAME, name) or len(name) > NAME_LENGTH:
        raise SkillError(line, f"name {name[:80] or 'is missing; it'} must be 1 to {NAME_LENGTH} of a-z, "
                         "0-9 and single hyphens between them")
    if name != folder:
        raise SkillError(line, f"name {name!r} must equal the name of its folder, {folder[:80]!r}")


# ---------------------------------------------------------------- choosing and listing, without I/O


def nearest(skills: list[Skill]) -> tuple[dict[str, Skill], list[tuple[Skill, Skill]]]:
    """Of equal names the first, sorted by name; and the pairs (hidden, by which)."""
    # exercise 5.1: choose among skills that come nearest first, and tell what is hidden instead of dropping
    # it.
    # hint: setdefault on a dict by name keeps the first and tells you which one that is
    chosen: dict[str, Skill] = {}
    hidden = [(far, chosen[far.name]) for far in skills if chosen.setdefault(far.name, far) is not far]
    return dict(sorted(chosen.items())), hidden


def build_listing(skills: list[Skill], limit: int = LISTING_LIMIT, rest: str = LISTING_REST) -> str:
    """What the system prompt says of the skills, never longer than `limit` characters.

    When not all descriptions fit, the first ones stay, and of the rest only the names.
    """
    # exercise 5.2: LISTING_HEAD, then `- name: description` for each. Over the limit: as many descriptions as
    # fit, and a line `rest` with the other names; if these do not fit either, cut, ending in ", ...".
    # hint: try with all descriptions, then one less, and so on; the first text that fits is the answer
    # hint: without skills there is no listing at all, not even a head
    lines = [f"- {skill.name}: {skill.description}" for skill in skills]
    for described in range(len(lines), -1, -1):
        names = ", ".join(skill.name for skill in skills[described:])
        text = "\n".join([LISTING_HEAD, *lines[:described], *[rest + names] * bool(names)])
        if len(text) <= limit:
            return text if lines else ""
    return text[:limit - 5].rpartition(",")[0] + ", ..."


# ---------------------------------------------------------------- files


def skill_roots(root: Path) -> list[Path]:
    """Where a workspace's skills lie, nearest first. HOME is asked each time, not at import."""
    folders = root / "skills", root / ".claude" / "skills", os.path.expanduser("~/.claude/skills")
    return [Path(real) for real in dict.fromkeys(map(os.path.realpath, folders))]  # the root may be the home


def find_skill_files(roots: list[Path]) -> dict[Path, tuple]:
    """The SKILL.md of each skill's folder, in order, with its time and size.

    Comparing two answers tells whether anything changed. A folder without Markdown is not meant as
    a skill; one with Markdown and no SKILL.md is, and reading it will say what is missing.
    """
    files: list[Path] = []
    for root in filter(os.path.isdir, roots):
        try:
            files += [folder / "SKILL.md" for folder in sorted(root.iterdir()) if folder.name[0] != "." and (
                any(folder.glob("*.[mM][dD]")) or not folder.exists()  # a link that leads nowhere
                or folder.is_dir() and not os.access(folder, os.R_OK | os.X_OK))]
        except OSError:
            files.append(root / "SKILL.md")  # reading it will say why the folder cannot be listed
    return {file: file_state(file) for file in files}


def file_state(file: Path) -> tuple:
    """What tells one state of a file from another without reading it."""
    try:
        found = file.stat()
        return found.st_mtime_ns, found.st_size, found.st_ino
    except OSError as error:
        return (error.errno,)


def read_skill(file: Path) -> Skill:
    """The skill in a file; SkillError when it cannot be one."""
    try:
        if file.stat().st_size > SKILL_LIMIT or not file.is_file():  # opening a pipe would wait for ever
            raise SkillError(1, f"this is not a regular file of at most {SKILL_LIMIT:,} bytes")
        return parse_skill(file.read_bytes(), file.parent)
    except OSError as error:
        raise SkillError(1, f"cannot be read: {error.strerror}") from error


def bundled_files(folder: Path) -> list[str]:
    """Names of the files in a skill's folder besides SKILL.md, relative to it; hidden ones are left out."""
    names = (file.relative_to(folder) for file in folder.rglob("*") if file.is_file())
    return sorted(name.as_posix() for name in names if name.as_posix() != "SKILL.md"
                  and not any(part.startswith((".", "__pycache__")) for part in name.parts))


# ---------------------------------------------------------------- the agent


class Skilled(Agent):
    """An agent that knows its skills by name and loads them when they are needed."""

    def __init__(self, workspace: core.Workspace, **options):
        super().__init__(workspace, **{"tools": core.extended_tools(workspace), **options})
        own = core.Tool.of(self.load_skill, read_only=True), core.Tool.of(self.list_skills, read_only=True)
        self.tools = self.tools | core.registry(*own)
        self.skills, self.skill_files, self.skill_problems, self.skill_listing = {}, {}, [], ""
        self.refresh_skills()

    def request(self, messages: list[dict]) -> dict:
        """The same request, with the listing of skills behind the system prompt."""
        self.refresh_skills()
        request = super().request(messages)
        return {**request, "system": f"{request['system']}\n\n{self.skill_listing}".rstrip()}

    def refresh_skills(self) -> None:
        """Reads the skills again if a file came, went or changed; tells each new problem once."""
        files = find_skill_files(skill_roots(self.workspace.root))
        if files == self.skill_files:
            return
        loaded, problems = [], []
        for file in files:
            try:
                loaded.append(read_skill(file))
            except SkillError as error:
                problems.append("{}:{}: {}; not loaded".format(self.shown(file), *error.args))
        self.skills, hidden = nearest(loaded)
        problems += [f"{self.shown(far.folder)}/SKILL.md:1: hidden by the nearer {self.shown(near.folder)}"
                     for far, near in hidden]
        for problem in [problem for problem in problems if problem not in self.skill_problems]:
            core.emit("notice", agent=self.name, text=problem)
        self.skill_problems, self.skill_listing = problems, build_listing([*self.skills.values()])
        self.skill_files = files  # last, so that Ctrl-C before it loses nothing

    def shown(self, path: Path) -> str:
        """A path as `read` takes it; one outside the workspace in full."""
        return self.workspace.name(path) if path.is_relative_to(self.workspace.root) else path.as_posix()

    def load_skill(self, name: str) -> str:
        """Load the instructions of a skill by its name, as the system prompt or list_skills gives it.

        Use it before you start on a task that fits the skill's description, once for each task.
        You get the instructions, the skill's folder, and the names of the files bundled with it:
        read those only when the instructions call for them.
        """
        self.refresh_skills()
        if name not in self.skills:
            raise core.ToolError(self.unknown_skill(name))
        folder = self.skills[name].folder.resolve()  # it may be linked from anywhere
        files = [self.shown(folder / file) for file in bundled_files(folder)]
        how = "use read" if folder.is_relative_to(self.workspace.root) else "outside the workspace: use bash"
        files[FILES_SHOWN:] = [f"and {len(files) - FILES_SHOWN:,} more"] * (len(files) > FILES_SHOWN)
        start = f'<skill name="{name}" folder="{self.shown(folder)}">'
        return "\n".join([start, self.skills[name].body, f"\nBundled files ({how}):", *(files or ["none"]),
                          "</skill>"])

    def unknown_skill(self, name: str) -> str:
        """Why a name loads nothing, and what to do."""
        if not re.fullmatch(NAME, name):
            return f"load_skill: {name[:80]!r} is no skill's name; give a name from list_skills, never a path"
        if broken := [text for text in self.skill_problems if f"/{name}/SKILL.md:" in text]:
            return f"load_skill: {name} cannot be loaded: {broken[0]}. Tell the user, and work without it"
        near = ", ".join(difflib.get_close_matches(name, self.skills)) or "none; list_skills has all"
        return f"load_skill: there is no skill {name!r}; similar: {near}"

    def list_skills(self) -> str:
        """List every skill with its full description, also those the system prompt had no room for.

        Where even here there is no room for all descriptions, the last skills are listed by name.
        """
        self.refresh_skills()
        return build_listing([*self.skills.values()], core.OUTPUT_LIMIT, "By name only: ") or "(none)"


def show_skills(agent: Skilled, messages: list[dict], argument: str) -> str:
    """the skills, where they lie, and what could not be loaded"""
    agent.refresh_skills()
    lines = [f"{agent.shown(skill.folder)}\n{textwrap.indent(textwrap.fill(skill.description, 72), '    ')}"
             for skill in agent.skills.values()]
    return "\n".join([*(lines or ["there are no skills"]), *(f"! {problem}" for problem in agent.skill_problems)])


def pasted(workspace: core.Workspace, **options) -> Agent:
    """The pain, for the demonstration: the bodies of this repository's skills in the system prompt."""
    shutil.copytree(Path(__file__).resolve().parent / "skills", workspace.root / "skills")
    agent = s02_tool_use.make_agent(workspace, **options)
    agent.system = "\n\n".join([agent.system, *(skill.body for skill in Skilled(workspace).skills.values())])
    return agent


def prompt_size(agent: Agent, messages: list[dict]) -> str:
    """The figure of the demonstration."""
    return f"System prompt: about {core.estimate_tokens(agent.request(messages)['system']):,} tokens."


DEMO = [
    {"note": "Every guide pasted into the system prompt: a question that needs none of them pays for all.",
     "make": pasted, "prompt": "Say hello.", "script": "say Hello.", "after": prompt_size},
    {"note": "Names and descriptions only. A broken skill is named, and harms nothing else.",
     "files": {"skills/releases/SKILL.md": "---\nname: releases\nallowed-tools: [Read\n---\n",
               "prices.py": 'def cents(price):\n    return int(price.replace(",", ""))\n'},
     "make": Skilled, "prompt": "Say hello.", "script": "say Hello.", "after": prompt_size},
    {"note": "A task that fits a description: its body comes as a tool result, once.",
     "prompt": "Review prices.py.",
     "script": "load_skill ../releases ;; load_skill code-review ;; read prices.py ;; "
               "say BUG prices.py:2: the comma is dropped, so 1,5 gives 15 cents instead of 150. Ready: no.",
     "after": lambda agent, messages: f"Loaded: {len(agent.skills['code-review'].body):,} characters, once."},
]

if __name__ == "__main__":
    main(Skilled, session="s05", title="skills", demo=DEMO, commands={"skills": show_skills})
