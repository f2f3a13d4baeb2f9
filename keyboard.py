"""keyboard · what a person types: answers to a question, pastes, and what came before it was asked for"""

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
