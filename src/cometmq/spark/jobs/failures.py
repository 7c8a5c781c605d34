"""The cause of a job's failure in one line: Spark wraps an error of a Python source in two
tracebacks."""

from __future__ import annotations

import re
from typing import Final

_RAISED: Final = re.compile(r"^[^\S\n]*([A-Za-z_][\w.]*): (.+)$", re.MULTILINE)


def cause_of(error: BaseException) -> str:
    """Return the innermost cause in an error's text, preferring an error of CometMQ if there is
    one."""
    text = str(error).strip()
    raised: list[tuple[str, str]] = _RAISED.findall(text)
    ours = [sentence for name, sentence in raised if name.startswith("cometmq.")]
    if ours:
        return ours[-1]
    if "Traceback (most recent call last)" in text and raised:
        return ": ".join(raised[-1])
    return " ".join(text.split("\n\n")[0].split("JVM stacktrace:")[0].split())
