"""Stack traces of every thread and task of this process as text, like a Java client's jstack."""

from __future__ import annotations

import asyncio
import sys
import threading
import traceback
from typing import TYPE_CHECKING, Final

if TYPE_CHECKING:
    from types import FrameType

#: Maximum length of the text, in characters.
MAX_CHARACTERS: Final = 256 * 1024
_FRAMES: Final = 16


def stacks() -> str:
    """Return the stacks of all threads, then of the running loop's tasks, innermost call last."""
    names = {thread.ident: thread.name for thread in threading.enumerate()}
    parts = [
        _titled(f"thread {names.get(ident, ident)}", traceback.format_stack(frame, _FRAMES))
        for ident, frame in sys._current_frames().items()
    ]
    parts += [
        _titled(f"task {task.get_name()}", _lines(task.get_stack(limit=_FRAMES)))
        for task in sorted(asyncio.all_tasks(), key=lambda task: task.get_name())
    ]
    text = "\n".join(parts)
    return text if len(text) <= MAX_CHARACTERS else text[:MAX_CHARACTERS] + "\n...\n"


def _lines(frames: list[FrameType]) -> list[str]:
    places = [(frame, frame.f_lineno) for frame in frames]
    return traceback.StackSummary.extract(places).format()


def _titled(title: str, lines: list[str]) -> str:
    return f"{title}\n{''.join(lines)}"
