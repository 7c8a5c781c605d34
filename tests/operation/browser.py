"""A real Chromium for tests of the page: Debian's, headless, without root and an installation.

It is the machine's, or Debian's packages are downloaded into the cache folder and unpacked there.
Playwright's Python package drives it if it is installed; its own browsers are not used.
"""

from __future__ import annotations

import os
import signal
import subprocess
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pytest
from playwright.sync_api import sync_playwright

from tests.debian import PackageMissing, libraries, unpacked
from tests.operation.test_start import COMETMQ

if TYPE_CHECKING:
    from playwright.sync_api import Browser as Launched
    from playwright.sync_api import BrowserContext, Page


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


@contextmanager
def launched() -> Iterator[Launched]:
    """Chromium, until the block ends; the test is skipped where there is none."""
    try:
        found = chromium()
    except BrowserMissing as error:
        pytest.skip(str(error))
    with sync_playwright() as driver:
        browser = driver.chromium.launch(
            executable_path=str(found.program), args=["--no-sandbox"],
            env=dict(found.environment()),
        )  # fmt: skip
        yield browser
        browser.close()


@contextmanager
def opened(browser: Launched, **more: Any) -> Iterator[Page]:
    """A tab that complains of nothing: no script failed, and no policy was broken."""
    context: BrowserContext = browser.new_context(**more)
    page = context.new_page()
    complaints: list[str] = []
    page.on("console", lambda line: complaints.append(line.text) if line.type == "error" else None)
    page.on("pageerror", lambda error: complaints.append(str(error)))
    try:
        yield page
        assert complaints == []
    finally:
        context.close()


@contextmanager
def changing(namesrv: str) -> Iterator[str]:
    """A page that may change a cluster; its address."""
    command = [COMETMQ, "dashboard", "-n", namesrv, "--port", "0", "--allow-changes"]
    process = subprocess.Popen(command, stdout=subprocess.PIPE, text=True)
    assert process.stdout is not None
    try:
        yield process.stdout.readline().strip().removeprefix("ready dashboard=")
        process.send_signal(signal.SIGTERM)
        process.communicate(timeout=20)
        assert process.returncode == 0
    finally:
        process.kill()
        process.communicate(timeout=20)
