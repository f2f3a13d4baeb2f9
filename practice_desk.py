"""practice_desk · a learner's folder: one file per session in front, the others kept, and progress.json

    practice/s06_compact.py            the work on the exercise that its first line names
    practice/6.4.txt                   the answer to a question
    practice/kept/6.1/s06_compact.py   the work on 6.1, while another exercise of s06 is in front
    practice/progress.json             tries, hints seen, and what is solved
"""

import json
import re
from collections.abc import Callable
from pathlib import Path

import core
from practice_carve import FIRST_LINE, Exercise, carved, exercises, question


class Usage(Exception):
    """What was typed cannot be done; the words say what can."""


class Desk:
    """A learner's folder: the files that are worked on, and progress.json."""

    def __init__(self, folder: Path, tell: Callable[[str], None]):
        self.folder, self.progress_file, self.tell = folder, folder / "progress.json", tell
        self.all = exercises()

    def get(self, number: str | None) -> Exercise:
        """The exercise of a number; without one, the one whose file changed last."""
        if number is None:
            started = [one for one in self.all if self.started(one)]
            if not started:
                raise Usage("nothing is started yet: python practice.py start")
            return max(started, key=lambda one: self.file(one).stat().st_mtime)
        if found := [one for one in self.all if one.number == number]:
            return found[0]
        same = [one.number for one in self.all if one.number.partition(".")[0] == number.partition(".")[0]]
        raise Usage(f"there is no exercise {number}; there are {', '.join(same or [one.number for one in self.all])}")

    def next(self, after: Exercise | None = None) -> Exercise | None:
        """The first exercise that is not solved, behind another one if there is any behind it."""
        open_ones = [one for one in self.all if not self.of(one).get("passed")]
        behind = [one for one in open_ones if after and one.order > after.order]
        return next(iter(behind + open_ones), None)

    def file(self, exercise: Exercise) -> Path:
        """Where a learner's work on an exercise is: in front, or kept while another has its place."""
        if exercise.kind == "predict":
            return self.folder / f"{exercise.number}.txt"
        front = self.front(exercise)
        return front if self.holder(front) == exercise.number else self.folder / "kept" / exercise.number / front.name

    def front(self, exercise: Exercise) -> Path:
        """The one file of a session that is worked on at a time."""
        return self.folder / f"{exercise.session}.py"

    def holder(self, front: Path) -> str:
        """The number of the exercise whose work lies in a file."""
        if not front.is_file():
            return ""
        with front.open(encoding="utf-8", errors="replace") as file:
            found = re.match(FIRST_LINE.partition("{}")[0] + r"([\d.]+):", file.readline())
        # without its first line it is the one that was started last
        return found[1] if found else self.progress().get(front.stem, {}).get("started", "")

    def must_exist(self) -> None:
        """Usage when there is no such folder: a misspelt name must not look like no work at all."""
        if not self.folder.is_dir():
            raise Usage(f"there is no folder {self.folder}; --folder names the one with the learner's files")

    def started(self, exercise: Exercise) -> bool:
        """Whether there is a file of a learner's."""
        return self.file(exercise).is_file()

    def progress(self) -> dict:
        """What is remembered of each exercise, by number; a damaged file is set aside."""
        try:
            found = json.loads(self.progress_file.read_text(encoding="utf-8"))
            if not isinstance(found, dict) or not all(isinstance(one, dict) for one in found.values()):
                raise ValueError("not an object of objects")
            return found
        except FileNotFoundError:
            return {}
        except (OSError, ValueError) as error:
            aside = self.progress_file.with_name("progress.json.damaged")
            self.progress_file.replace(aside)
            self.tell(f"progress.json could not be read ({error}); it is now {aside.name}. `check all` counts anew.")
            return {}

    def of(self, exercise: Exercise) -> dict:
        """What is remembered of one exercise: tries, hints, passed."""
        return self.progress().get(exercise.number, {})

    def note(self, key: str, **changes) -> None:
        """Remembers something under an exercise's number or a session's name."""
        self.folder.mkdir(parents=True, exist_ok=True)
        with core.locked(self.progress_file):
            known = self.progress()
            known[key] = {**known.get(key, {}), **changes}
            core.atomic_write(self.progress_file, (json.dumps(known, indent=1) + "\n").encode())

    def begin(self, exercise: Exercise) -> None:
        """Writes the exercise's file, and keeps what lies in its place."""
        path, kept = self.file(exercise), self.folder / "kept" / exercise.number / f"{exercise.session}.py"
        self.folder.mkdir(parents=True, exist_ok=True)
        if exercise.kind != "predict":
            path = self.front(exercise)
            if path.is_file() and (other := self.holder(path) or "unknown"):
                (self.folder / "kept" / other).mkdir(parents=True, exist_ok=True)
                path.replace(self.folder / "kept" / other / path.name)
                self.tell(f"your work on {other} is kept: start {other} brings it back")
        text = question(exercise) if exercise.kind == "predict" else carved(exercise)
        core.atomic_write(path, kept.read_bytes() if kept.is_file() else text.encode())
        kept.unlink(missing_ok=True)
        self.note(exercise.session, started=exercise.number)
