"""The session in docs/how-to/daily-work.md, against a Java broker: commands that read, send, and
change topics, groups and settings print the same kinds of lines and end with the same codes."""

import re
import time
from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.compat import anchor
from tests.compat.conftest import SharedPeers
from tests.operation.test_daily_work import PAGE
from tests.transcript import ANY_LINES, Shell, Step, form_of, read_page

#: Commands of the page that are for its own servers, or for both of its brokers.
LEFT_OUT = re.compile(
    r"pid|echo |cometmq (namesrv|broker (show|drain|undrain)|acl|debug)|--broker|--credentials"
    r"|secure|conf/|health|tar |topic route"
)
#: A Java broker tells name servers of its new topics after up to 30 s, and measures its rates late.
LATE_S = 60
LATE = re.compile(r"cometmq (broker|transaction) list")


def kinds_of(lines: list[str]) -> set[str]:
    """Return the forms of lines, without numbers, the order of properties and repetitions."""
    found = set()
    for line in lines:
        form = re.sub(r"\d+(\.\d+){3}:\d+", "ADDRESS", form_of(line))
        form = re.sub(r"\d+(\.\d+)?", "N", form)
        if form.startswith("properties: "):
            form = " ".join(sorted(form.split()))
        form = re.sub(r" before=N", "", form)
        found.add(re.sub(r"\bbroker-[ab](, ?broker-[ab])?\b", "BROKER", form))
    return found


def differs(step: Step, printed: list[str]) -> bool:
    """Return whether other kinds of lines were printed than the page shows."""
    kinds = kinds_of(printed)
    if ANY_LINES in step.shown:
        return not kinds_of([line for line in step.shown if line != ANY_LINES]) <= kinds
    return kinds != kinds_of(list(step.shown))


def steps_of(page: str) -> list[Step]:
    """Return the steps that one broker of any kind can do."""
    return [step for step in read_page(page).steps if not LEFT_OUT.search(step.command)]


@pytest.fixture
def java(jars: Path, peers: SharedPeers, tmp_path: Path) -> Iterator[anchor.JavaCluster]:
    """A Java name server and broker on which nothing was done."""
    peers.stop_java()
    cluster = anchor.JavaCluster(jars, tmp_path / "java")
    with cluster.until_killed():
        yield cluster


def test_the_session_against_java(java: anchor.JavaCluster, tmp_path: Path) -> None:
    text = PAGE.read_text(encoding="utf-8")
    addresses = {"9876": java.namesrv, "10911": java.broker}
    shell = Shell(tmp_path, {port: each.rpartition(":")[2] for port, each in addresses.items()})
    shell.write(read_page(text).files)
    steps = steps_of(text)
    assert len(steps) > 30
    differing = []
    for step in steps:
        printed = shell.run(step)
        deadline_s = time.monotonic() + LATE_S
        while differs(step, printed) and LATE.search(step.command):
            if time.monotonic() > deadline_s:
                break
            printed = shell.run(step)
        if differs(step, printed):
            differing.append("\n".join([f"$ {step.command}", *step.shown, "printed:", *printed]))
    assert not differing, "\n\n".join(differing)
