"""What docs/how-to/production.md says can be done as it stands there, and its figures are those of
docs/performance.md."""

import os
import re
import shlex
import shutil
import signal
import time
from collections.abc import Iterator
from contextlib import suppress
from pathlib import Path

import pytest

from cometmq.admin.node import VIP_DISTANCE, lasting_port
from cometmq.broker.app import DRAIN_LIMIT_MS
from cometmq.broker.config import BrokerConfig
from cometmq.cli.configuration import explain
from cometmq.cli.nouns import ENTRIES, load
from cometmq.cli.servers import build_parser
from cometmq.store.config import StoreConfig
from cometmq.testing.cluster import SMALL_FILES
from tests.architecture.rules import ROOT, SRC
from tests.transcript import Shell, matches, read_page

PAGE = ROOT / "docs" / "how-to" / "production.md"
TEXT = PAGE.read_text(encoding="utf-8")
PERFORMANCE = (ROOT / "docs" / "performance.md").read_text(encoding="utf-8")
#: Programs of a machine; tests/cli/test_pages.py reads the commands of ours.
PROGRAMS = frozenset(
    {"apt-get", "cometmq", "docker", "kubectl", "ln", "mv", "python3", "runuser", "sysctl"}
    | {"systemd-sysusers"}
)

pytestmark = pytest.mark.operation


@pytest.fixture
def folder(tmp_path: Path) -> Iterator[Path]:
    """A folder for the session; servers that it starts are ended."""
    yield tmp_path
    for name in ("broker", "namesrv"):
        with suppress(FileNotFoundError, ProcessLookupError):
            os.kill(int((tmp_path / f"{name}.pid").read_text()), signal.SIGKILL)


def test_the_session_of_backup_and_restore(folder: Path) -> None:
    ports = {"9876": str(lasting_port()), "10911": str(lasting_port(VIP_DISTANCE))}
    shell = Shell(folder, ports)
    begin, *steps = read_page(TEXT).steps
    shell.run(begin)
    # Ports that are free here, and files of a few megabytes.
    for name in ("broker.conf", "namesrv.conf"):
        path = folder / "conf" / name
        text = path.read_text(encoding="utf-8")
        for port, free in ports.items():
            text = text.replace(port, free)
        if name == "broker.conf":
            text += "".join(f"{key}={value}\n" for key, value in SMALL_FILES.items())
        path.write_text(text, encoding="utf-8")
    printed: list[str] = []
    for step in steps:
        printed = shell.run(step)
        # A snapshot has what the broker has on the device, some seconds later.
        deadline_s = time.monotonic() + 60
        while "log 0 to 0" in "".join(printed) and time.monotonic() < deadline_s:
            shutil.rmtree(folder / "snapshots")
            printed = shell.run(step)
        assert shell.exit_code == 0, (step.command, printed)
        assert matches(step.shown, printed), (step.command, printed)
        if "message show" in step.command:
            assert "A-17" in "\n".join(printed)


def shell_lines() -> list[str]:
    """Every command that the page shows outside of the session."""
    blocks = re.findall(r"^ *```sh\n(.*?)^ *```$", TEXT, re.MULTILINE | re.DOTALL)
    return [line.strip() for block in blocks for line in block.splitlines()]


@pytest.mark.parametrize("line", shell_lines())
def test_a_command_names_what_is_there(line: str) -> None:
    words = shlex.split(line)
    program = words[0].removeprefix("/opt/cometmq/bin/")
    assert program in PROGRAMS | {"install", "pip", "systemctl"}
    for word in words[1:]:
        if word.startswith("packaging/"):
            assert (ROOT / word).exists(), word
        elif word.endswith(".service"):
            assert (ROOT / "packaging" / "systemd" / word).exists(), word


def inline_commands() -> list[str]:
    """Every command of ours within a line of text."""
    return sorted(set(re.findall(r"`cometmq ([a-z][^`]+)`", TEXT)))


@pytest.mark.parametrize("command", inline_commands())
def test_a_command_in_the_text_is_known(command: str) -> None:
    word, *words = command.split()
    if ENTRIES[word].is_server and words[0].startswith("-"):
        build_parser().parse_args([word, *words])
        return
    noun = load(word)
    assert "" in noun.commands or noun.find(words)[0] is not None


def monitoring() -> str:
    """The section of the page on monitoring."""
    return TEXT.partition("\n## Monitoring\n")[2].partition("\n## ")[0]


def test_events_of_the_log_are_logged() -> None:
    sources = "".join(path.read_text(encoding="utf-8") for path in SRC.rglob("*.py"))
    events = set(re.findall(r"`((?:log|limit)_\w+)`", monitoring()))
    assert len(events) == 3
    assert {event for event in events if event not in sources} == set()


def test_metrics_are_those_of_the_servers() -> None:
    pages = (ROOT / "docs" / "metrics.md").read_text(encoding="utf-8")
    names = set(re.findall(r"`((?:rocketmq|cometmq)_\w+)`", monitoring()))
    assert len(names) == 10
    assert {name for name in names if f"`{name}`" not in pages} == set()


def test_extras_are_those_of_the_package() -> None:
    text = (ROOT / "pyproject.toml").read_text(encoding="utf-8")
    [wanted] = {*re.findall(r"'[\w.-]*\[([\w,]+)\]'", TEXT)}
    for name in wanted.split(","):
        assert re.search(rf"^{name} = \[", text, re.MULTILINE), name


def test_kernel_settings_are_there() -> None:
    text = (ROOT / "packaging" / "systemd" / "cometmq.sysctl").read_text(encoding="utf-8")
    settings = [line.split(" = ") for line in text.splitlines() if line and line[0] != "#"]
    assert len(settings) >= 3
    for key, value in settings:
        assert (Path("/proc/sys") / key.replace(".", "/")).exists(), key
        assert value.isdecimal()


def test_settings_and_limits_are_those_of_the_servers() -> None:
    for key in set(re.findall(r"^\| `([a-z]+[A-Z]\w+)(?:=\w+)?`", TEXT, re.MULTILINE)):
        assert explain(key), key
    store = StoreConfig()
    assert f"| {store.disk_max_used_space_ratio} % |" in TEXT
    assert f"| {store.disk_space_clean_forcibly_ratio} % |" in TEXT
    assert f"| {store.disk_space_warning_level_ratio} % |" in TEXT
    assert f"(within {DRAIN_LIMIT_MS // 1000} s" in TEXT
    assert f"{BrokerConfig().metrics_prom_exporter_port} and 5558" in TEXT


def test_figures_are_those_of_the_measurements() -> None:
    section = TEXT.partition("\n## Capacity\n")[2].partition("\n## ")[0]
    figures = re.findall(r"\| (\d[\d ]+) \|$", section, re.MULTILINE)
    assert len(figures) == 6
    for figure in figures:
        assert figure in PERFORMANCE, figure
