"""The folder in which a run keeps its files; every run starts with an empty one.

A marker file shows that the folder is the demo's own, so that no other files are ever removed.
"""

from __future__ import annotations

import shutil
from dataclasses import dataclass
from pathlib import Path
from typing import Final

from cometmq.core.errors import SettingsError

MARKER: Final = ".cometmq-demo"


@dataclass(frozen=True, slots=True)
class Folder:
    """Paths under ``root``."""

    root: Path

    @property
    def store(self) -> Path:
        """The broker's store."""
        return self.root / "broker"

    @property
    def broker_log(self) -> Path:
        """The broker's log file."""
        return self.root / "broker.log"

    @property
    def base(self) -> Path:
        """The base-data platform's database."""
        return self.root / "base.sqlite"

    @property
    def spark(self) -> Path:
        """Table, checkpoint, report and log of the Spark pipeline."""
        return self.root / "spark"

    def copy(self, name: str) -> Path:
        """Return the path of a platform's database."""
        return self.root / f"{name}.sqlite"


def empty_folder(root: Path) -> Folder:
    """Create ``root``, or empty it if an earlier run left it.

    Raise SettingsError if it holds any other files.
    """
    if root.exists() and not root.is_dir():
        raise SettingsError("directory", f"{root} is not a directory: choose another one")
    if root.exists() and any(root.iterdir()) and not (root / MARKER).exists():
        raise SettingsError(
            "directory", f"{root} holds files that are not the demo's: choose another directory"
        )
    if root.exists():
        for path in root.iterdir():
            if path.is_dir() and not path.is_symlink():
                shutil.rmtree(path)
            elif path.name != MARKER:
                path.unlink()
    root.mkdir(parents=True, exist_ok=True)
    (root / MARKER).touch()
    return Folder(root.resolve())
