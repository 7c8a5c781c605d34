"""The session in docs/how-to/daily-work.md works as it stands there, on two real brokers."""

import os
import signal
from collections.abc import Iterator
from contextlib import suppress
from pathlib import Path

import pytest

from cometmq.admin.node import VIP_DISTANCE, lasting_port
from cometmq.testing.cluster import SMALL_FILES
from tests.architecture.rules import ROOT
from tests.transcript import Shell, form_of, matches, read_page

PAGE = ROOT / "docs" / "how-to" / "daily-work.md"
SERVERS = ("broker-a", "broker-b", "namesrv")


@pytest.fixture
def folder(tmp_path: Path) -> Iterator[Path]:
    """A folder for the session; servers that it starts are ended."""
    yield tmp_path
    for name in SERVERS:
        with suppress(FileNotFoundError, ProcessLookupError):
            os.kill(int((tmp_path / f"{name}.pid").read_text()), signal.SIGKILL)


def test_the_session(folder: Path) -> None:
    page = read_page(PAGE.read_text(encoding="utf-8"))
    assert len(page.steps) > 50
    ports = {"9876": str(lasting_port())}
    while len(set(ports.values())) < 4:
        ports |= {port: str(lasting_port(VIP_DISTANCE)) for port in ("10911", "10921", "10931")}
    shell = Shell(folder, ports)
    shell.write(page.files, "".join(f"{key}={value}\n" for key, value in SMALL_FILES.items()))
    for step in page.steps:
        printed = shell.run(step)
        assert matches(step.shown, printed), "\n".join(
            [f"$ {step.command}", "the page:", *step.shown, "printed:", *printed]
        )


@pytest.mark.parametrize(
    ("shown", "printed"),
    [
        (["a"], ["b"]),
        (["a"], []),
        ([], ["a"]),
        (["a", "..."], ["b", "a"]),
        (["queue=1"], ["queue=2"]),
        (["id=7F00000115C1A1A50050869215F50001"], ["id=7F00"]),
    ],
)
def test_other_lines_are_found(shown: list[str], printed: list[str]) -> None:
    assert not matches(tuple(shown), printed)


def test_what_differs_in_each_run_is_compared_by_its_form() -> None:
    line = "at 2026-11-27T03:07:13.737Z   id=7F00000115C1A1A50050869215F50001"
    assert form_of(line) == "at TIME id=ID"
    assert matches(("...", line, "..."), ["b", line.replace("03:07", "04:08"), "c"])
