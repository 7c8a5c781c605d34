"""A file of the seeds that were run, so that an interrupted deep run can continue.

    # <hash of the program>
    17 ok 0d1f2a3b4c5d6e7f
    18 VIOLATED consumed

Seeds that passed with another program have to be run again, so the file is started afresh then.
"""

from __future__ import annotations

from collections.abc import Iterable
from hashlib import blake2b
from pathlib import Path
from typing import Final

import cometmq

_OK: Final = "ok"
#: Folders whose code decides what a seed does.
_PROGRAM: Final = Path(cometmq.__file__).parent, Path(__file__).parent


def program_hash(folders: Iterable[Path] = _PROGRAM) -> str:
    """Return a hash of all Python files under ``folders``, except for files of tests."""
    found = blake2b(digest_size=8)
    for folder in folders:
        for path in sorted(folder.rglob("*.py")):
            if not path.name.startswith("test_"):
                found.update(path.read_bytes())
    return found.hexdigest()


class Ledger:
    """The ledger at ``path`` for one version of the program; without a path it is in memory
    only."""

    def __init__(self, path: Path | None, program: str) -> None:
        self.passed: set[int] = set()
        self.failed: dict[int, str] = {}
        self._path = path
        if path is None:
            return
        head = f"# {program}"
        lines = path.read_text().splitlines() if path.exists() else []
        if lines[:1] == [head]:
            for line in lines[1:]:
                self._read(line)
        else:
            path.write_text(head + "\n")

    def _read(self, line: str) -> None:
        number, _, rest = line.partition(" ")
        state, _, detail = rest.partition(" ")
        if not number.isdecimal() or not detail:
            return  # an interruption cut the line short
        if state == _OK:
            self.passed.add(int(number))
        else:
            self.failed[int(number)] = detail

    def note_passed(self, seed: int, digest: str) -> None:
        """Record a seed that passed."""
        self.passed.add(seed)
        self._write(f"{seed} {_OK} {digest}")

    def note_failed(self, seed: int, invariant: str) -> None:
        """Record a seed that violated an invariant."""
        self.failed[seed] = invariant
        self._write(f"{seed} VIOLATED {invariant}")

    def _write(self, line: str) -> None:
        if self._path is not None:
            with self._path.open("a") as file:
                file.write(line + "\n")
