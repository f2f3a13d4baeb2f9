"""keyboard · what a person types: lines, answers, pastes, and what came before it was asked for"""

import contextlib
import os
import re
import sys


def choice(typed: str) -> str:
    """yes, no or always from what was typed, or "" when it is none of them."""
    typed = typed.strip().lower()
    return next((word for word in ("yes", "no", "always") if typed and word.startswith(typed)), "")


def pasted(text: str) -> str:
    """What was typed, without the marks that a terminal puts around a paste."""
    return re.sub(r"\x1b\[20[01]~", "", text).replace("\r", "\n")


def typed_ahead() -> list[str]:
    """What was typed or pasted before it was asked for, taken out of the terminal's buffer.

    It is one prompt, as a paste must be; only a line that begins with / stands alone.
    """
    data = b""
    while more_typed(0) and (chunk := os.read(sys.stdin.fileno(), 1 << 16)):
        data += chunk
    parts = re.split(r"^(/.*)$", pasted(data.decode("utf-8", "replace")), flags=re.MULTILINE)
    return [part.strip("\n") for part in parts if part.strip()]


def more_typed(seconds: float = 0.03) -> bool:
    """Whether more input is there at once, as after a paste; never on Windows, which cannot tell."""
    import select

    try:
        return bool(select.select([sys.stdin], [], [], seconds)[0])
    except (OSError, ValueError):
        return False


def edit_lines() -> None:
    """Gives input() line editing and a history, where Python has readline (on Windows it has none)."""
    if os.environ.get("LC_ALL") in ("C", "POSIX"):
        os.environ["LC_ALL"] = "C.UTF-8"  # or readline would take each byte for a character
    with contextlib.suppress(ImportError):
        import readline

        readline.parse_and_bind(r'"\e[201~": ""')  # an end of a paste inside a paste; it would leave a ~
