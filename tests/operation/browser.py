"""A real Chromium for tests of the page: Debian's, headless, without root and an installation.

It is the machine's, or Debian's packages are downloaded into the cache folder and unpacked there.
Playwright's Python package drives it if it is installed; its own browsers are not used.
"""

from __future__ import annotations

import os
from dataclasses import dataclass
from pathlib import Path

from tests.debian import PackageMissing, libraries, unpacked


class BrowserMissing(Exception):
    """Chromium is not on this machine and could not be fetched; the message says why."""


@dataclass(frozen=True, slots=True)
class Browser:
    """The program, and the folders of the libraries that were fetched for it."""

    program: Path
    libraries: tuple[Path, ...] = ()

    def environment(self) -> dict[str, str]:
        """The environment that its processes need."""
        words = {"PATH": os.environ.get("PATH", ""), "LC_ALL": "C.UTF-8", "HOME": "/nonexistent"}
        if self.libraries:
            words["LD_LIBRARY_PATH"] = os.pathsep.join(map(str, self.libraries))
        return words


def chromium() -> Browser:
    """Chromium; it is fetched the first time. Raises BrowserMissing."""
    for name in ("/usr/bin/chromium", "/usr/bin/google-chrome"):
        if Path(name).exists():
            return Browser(Path(name))
    try:
        folder = unpacked("chromium", ["chromium", "fonts-dejavu-core"])
    except PackageMissing as error:
        raise BrowserMissing(str(error)) from None
    return Browser(folder / "usr" / "lib" / "chromium" / "chromium", libraries(folder))
