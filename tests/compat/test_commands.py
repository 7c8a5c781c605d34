"""Every command of mqadmin 4.9.7 and 5.5.0, run against our broker and Java's 4.9.7 in the same
state: what they print is compared as tests/compat/commands.py says."""

from __future__ import annotations

import re
import shlex
from collections.abc import Iterator, Mapping
from contextlib import ExitStack
from dataclasses import dataclass
from pathlib import Path
from typing import Final

import pytest

from cometmq.testing.cluster import ProcessCluster
from tests.compat import anchor
from tests.compat.anchor import wait_until
from tests.compat.commands import BOTH, COMMANDS, Command, Run
from tests.compat.conftest import Drivers, SharedPeers, Target
from tests.compat.driver import Driver
from tests.compat.groups import Group

pytestmark = pytest.mark.compat

RULES: Final = """\
globalWhiteRemoteAddresses:
- 127.0.0.1
accounts:
- accessKey: admin-key
  secretKey: secret-of-admin
  admin: true
"""
FILES: Final = {
    "conf/plain_acl.yml": RULES,
    "topics.json": '[{"topicName":"made","readQueueNums":2,"writeQueueNums":2,"perm":6}]',
    "groups.json": '[{"groupName":"made","retryMaxTimes":3}]',
}
#: What is different in every run, by what it becomes.
CHANGING: Final = (
    (r"\d{4}-\d\d-\d\d \d\d:\d\d:\d\d(,\d{3})?", "TIME"),
    (r"\b1[78]\d{11}\b", "MS"),
    (r"\b\d+ms\b", "DURATION"),
    (r"[0-9A-F]{32,}", "ID"),
    (r"127\.0\.0\.1:\d+", "ADDRESS"),
    (r"(?m)^(Pub +)\S+", r"\1GROUP"),
    (r"\d+(\.\d+){3}@[\w#@-]+", "CLIENT"),
    ("/ADDRESS", "ADDRESS"),
    (r"@[0-9a-f]{5,8}\b", "@HASH"),
    (r"(commitLogOffset=|physicOffset=|CommitLog Offset: +|ID@)\d+", r"\1PLACE"),
    (r"\.[0-9]{13}\b", ".MS"),
)


#: Lines that come with time: Java's broker creates the one topic a while after its start, and a
#: group that leaves may not have committed in the other. The producer of a run of mqadmin, whose
#: group is the time, is known to a broker for a while.
LATE: Final = re.compile(r"RMQ_SYS_TRANS_HALF_TOPIC|^%RETRY%|^producer group \(MS\)")


@dataclass(frozen=True, slots=True)
class Printed:
    """What one run printed: its output, and the codes or exceptions of its errors."""

    out: str
    errors: tuple[str, ...]
    ended: bool

    def lines(self, run: Run) -> list[str]:
        """The output without what changes; lines in any order, since Java's tables have none."""
        text = self.out
        for pattern, instead in CHANGING:
            text = re.sub(pattern, instead, text)
        if run.mask:
            text = re.sub(run.mask, "MASKED", text)
        if run.numbers:
            text = re.sub(r"-?\d+(\.\d+)?", "N", text)
        lines = (" ".join(line.split()) for line in text.splitlines())
        return sorted(
            line for line in lines if line and "logback" not in line and not LATE.search(line)
        )

    @property
    def text(self) -> str:
        """Output and errors."""
        return "\n".join((self.out, *self.errors))


class Admin:
    """mqadmin of one version against one cluster."""

    def __init__(self, driver: Driver, target: Target, home: Path) -> None:
        self._driver = driver
        self._target = target
        self._names = {"ns": target.namesrv, "b": target.broker, "home": str(home)}
        self.groups: list[Group] = []

    def run(self, name: str, run: Run) -> Printed:
        """What a command prints."""
        words = shlex.split(run.arguments.format_map(self._names))
        found = self._driver.ask("command", arguments=[name, *words], limitMs=run.limit_ms)
        assert isinstance(found, dict)
        out, err = str(found["out"]), str(found["err"])
        for address in (self._target.broker, self._target.namesrv):
            out = out.replace(address, "ADDRESS")
        errors = re.findall(r"CODE: -?\d+|(?<=Caused by: )[\w.]+|NullPointerException", err)
        return Printed(
            out.replace(self._names["home"], "HOME"), tuple(errors[-1:]), bool(found["ended"])
        )

    def prepare(self) -> None:
        """A topic of two queues with a message in each, and groups that read them or did not."""
        version = "v" + self._driver.version[0]
        topic = f"{version}-topic"
        names = {"topic": topic}
        names |= {name: f"{version}-{name}" for name in ("online", "offline", "fresh", "untouched")}
        self._names |= names
        self.run("updateTopic", Run("-n {ns} -b {b} -t {topic} -r 2 -w 2"))
        wait_until(lambda: anchor.route_code(self._target.namesrv, topic) == 0, "the route")
        for name in ("fresh", "untouched"):
            self.run("updateSubGroup", Run(f"-n {{ns}} -b {{b}} -g {{{name}}}"))
        for queue in (0, 1):
            words = f"-n {{ns}} -t {{topic}} -b broker-a -i {queue} -k key-{queue} -c red -p body"
            sent = self.run("sendMessage", Run(f"{words} -m true"))
        unique = re.search(r"[0-9A-F]{32,}", sent.out)
        assert unique is not None, sent
        self._names["id"] = unique.group()
        by_key = Run("-n {ns} -t {topic} -k key-1")
        wait_until(lambda: not self.run("queryMsgByKey", by_key).errors, "the index")
        by_trace = Run("-n {ns} -i {id}")
        wait_until(lambda: not self.run("queryMsgTraceById", by_trace).errors, "the trace")
        shown = self.run("queryMsgByOffset", Run("-n {ns} -t {topic} -b broker-a -i 1 -o 0"))
        offset_id = re.search(r"OffsetID: +(\w+)", shown.out)
        assert offset_id is not None, shown
        self._names["offset_id"] = offset_id.group(1)
        self._names["host_id"] = offset_id.group(1)[:16]
        for name in ("offline", "online"):
            group = Group(self._driver, self._target, names[name], topic)
            group.received(group.join(), 2)
            group.close()
            self._commit(names[name])
        group = Group(self._driver, self._target, names["online"], topic)
        group.join()
        self.groups.append(group)

    def close(self) -> None:
        """Remove what is not the same on both, before the commands of another version."""
        for group in self.groups:
            group.close()
        for name in ("{online}", "{offline}", "{fresh}", "{untouched}", "{topic}-clone"):
            self.run("deleteSubGroup", Run(f"-n {{ns}} -b {{b}} -g {name} -r true"))

    def _commit(self, group: str) -> None:
        """Commit one message of each queue: a client that leaves does not wait for its commits."""
        names = f'"consumerGroup":"{group}","topic":"{self._names["topic"]}"'
        for queue in (0, 1):
            fields = f'{names},"queueId":"{queue}","commitOffset":"1"'
            assert anchor.answer_code(self._target.broker, 15, fields) == 0


Outputs = Mapping[tuple[str, int], Printed]


@pytest.fixture(scope="module")
def clusters(
    peers: SharedPeers, tmp_path_factory: pytest.TempPathFactory
) -> Iterator[dict[Path, Target]]:
    """Clusters of their own, with accounts on; this machine needs none."""
    peers.stop_java()
    homes = [tmp_path_factory.mktemp(name) for name in ("java", "cometmq")]
    for home in homes:
        for name, text in FILES.items():
            (home / name).parent.mkdir(exist_ok=True)
            (home / name).write_text(text)
    settings = {"aclEnable": "true", "traceTopicEnable": "true"}
    with ExitStack() as stack:
        java = anchor.JavaCluster(anchor.fetch_jars(), homes[0], settings)
        stack.enter_context(java.until_killed())
        ours = ProcessCluster(
            homes[1], aclEnable=True, traceTopicEnable=True, rocketmqHome=str(homes[1])
        )
        stack.enter_context(ours)
        anchor.wait_for_figures(java.broker)
        targets = [
            Target("java", java.namesrv, java.broker, "broker-a"),
            Target("cometmq", ours.namesrv, ours.broker, "broker-a"),
        ]
        yield dict(zip(homes, targets, strict=True))


class Comparison:
    """What the commands of each version print, with Java's broker and with ours."""

    def __init__(self, drivers: Drivers, clusters: Mapping[Path, Target]) -> None:
        self._drivers = drivers
        self._clusters = clusters
        self._outputs: dict[str, list[Outputs]] = {}

    def of(self, version: str) -> list[Outputs]:
        """Run all commands of a version once. What stopped a run leaves outputs missing."""
        if version not in self._outputs:
            outputs: list[dict[tuple[str, int], Printed]] = [{} for _ in self._clusters]
            self._outputs[version] = list(outputs)
            self._run(version, outputs)
        return self._outputs[version]

    def _run(self, version: str, outputs: list[dict[tuple[str, int], Printed]]) -> None:
        driver = self._drivers.of(version)
        admins = [Admin(driver, target, home) for home, target in self._clusters.items()]
        for admin in admins:
            admin.prepare()
        for command in commands_of(version):
            for number, run in enumerate(command.runs_in(version)):
                for admin, found in zip(admins, outputs, strict=True):
                    found[command.name, number] = admin.run(command.name, run)
        for admin in admins:
            admin.close()
        # Some commands leave threads behind that wake up all the time.
        self._drivers.end(version)


@pytest.fixture(scope="module")
def tools(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Drivers]:
    """JVMs for mqadmin alone."""
    running = Drivers(tmp_path_factory.mktemp("tools"))
    yield running
    running.close()


@pytest.fixture(scope="module")
def comparison(tools: Drivers, clusters: Mapping[Path, Target]) -> Comparison:
    """The outputs of all commands, made when they are first asked for."""
    return Comparison(tools, clusters)


def commands_of(version: str) -> list[Command]:
    """The commands that mqadmin of a version has."""
    return [command for command in COMMANDS if version in command.versions]


@pytest.mark.parametrize("version", BOTH)
def test_every_command_of_the_help_is_listed(drivers: Drivers, version: str) -> None:
    printed = drivers.of(version).mqadmin()
    named = re.findall(r"(?m)^   (\w+) +\S", printed)
    assert len(named) > 50
    assert sorted(command.name for command in commands_of(version)) == sorted(named)


@pytest.mark.parametrize(
    ("version", "command"),
    [
        pytest.param(version, command, id=f"{version}-{command.name}")
        for version in BOTH
        for command in commands_of(version)
        if command.runs_in(version)
    ],
)
def test_it_prints_what_it_does_with_java(
    comparison: Comparison, version: str, command: Command
) -> None:
    theirs, ours = comparison.of(version)
    for number, run in enumerate(command.runs_in(version)):
        java, comet = theirs[command.name, number], ours[command.name, number]
        assert (java.ended, comet.ended) == (run.ends, run.ends), run
        if run.theirs:
            assert re.search(run.theirs, java.text), (run, java)
            assert re.search(run.ours, comet.text), (run, comet)
        else:
            assert comet.lines(run) == java.lines(run), run
            assert comet.errors == java.errors, run


def test_no_figure_of_java_s_broker_is_missing(comparison: Comparison) -> None:
    """`brokerStatus`: of each key, as tools read them by name."""
    theirs, ours = (
        {
            line.partition(" :")[0].strip()
            for line in printed["brokerStatus", 0].out.splitlines()
            if " :" in line
        }
        for printed in comparison.of("4.9.7")
    )
    assert len(theirs) > 30
    assert theirs <= ours
