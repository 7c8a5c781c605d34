"""Browse, dead letters, offsets, settings, accounts, health: what people see of them."""

from __future__ import annotations

import json
import tarfile
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path

import pytest

from cometmq import BlockingClient
from cometmq.admin.api import Admin
from cometmq.admin.health import Aspect, Check, HealthLimits, HealthReport, NotHealthy
from cometmq.cli import seenbrokers
from cometmq.cli.commands.dlq import DeadLetterRow
from cometmq.cli.commands.message import MessageRow, check_format, formatted
from cometmq.cli.main import main
from cometmq.cli.render import cell
from cometmq.core.clock import SystemClock
from cometmq.core.errors import SettingsError
from cometmq.testing.cluster import Cluster


@pytest.fixture
def where(cometmq_session_cluster: Cluster) -> list[str]:
    return ["-n", cometmq_session_cluster.namesrv]


@pytest.fixture
def client(cometmq_session_cluster: Cluster) -> Iterator[BlockingClient]:
    with BlockingClient(cometmq_session_cluster.namesrv, offset_persist_interval_ms=50) as client:
        yield client


@pytest.fixture
def orders(client: BlockingClient) -> str:
    """A topic with three messages in one queue."""
    client.wait(Admin(client.inner.session).create_topic("orders", queues=1))
    for number in range(3):
        client.send("orders", f"body {number}".encode(), keys=(f"k{number}",), tag="ab"[number % 2])
    return "orders"


ROW = MessageRow(
    "id", "t", "b", 1, 2, "tag", ["k", "l"], None, None, None, None, "oid", 0, 9,
    {"a": "b"}, "text", "body",
)  # fmt: skip


@pytest.mark.parametrize(
    ("form", "text"),
    [
        ("%k %v\\n", "k l body\n"),
        ("%t/%p@%o", "t/1@2"),
        ("%b %g %i %s %h", "b tag id 9 a=b"),
        ("100%%\\t%d|", "100%\t|"),
        ("\\\\n", "\\n"),
    ],
)
def test_a_format_prints_what_is_asked_for(form: str, text: str) -> None:
    check_format(form)
    assert formatted(form, ROW) == text


@pytest.mark.parametrize("form", ["%x", "%", "%%%"])
def test_a_format_that_stands_for_nothing_is_refused(form: str) -> None:
    with pytest.raises(SettingsError, match="stands for nothing"):
        check_format(form)


@pytest.mark.parametrize(
    ("words", "lines"),
    [
        (["-f", "%k %v\\n"], ["k0 body 0", "k1 body 1", "k2 body 2"]),
        (["--from", "1", "-f", "%k\\n"], ["k1", "k2"]),
        (["--from", "1", "--to", "2", "-f", "%k\\n"], ["k1"]),
        (["--from", "@-1h", "--count", "1", "-f", "%k\\n"], ["k0"]),
        (["--filter", "b", "-f", "%k\\n"], ["k1"]),
        (["--grep", "dy 2", "-f", "%k\\n"], ["k2"]),
        (["--from", "last", "-f", "%k\\n"], []),
    ],
)
def test_messages_are_browsed_without_a_group(
    words: list[str],
    lines: list[str],
    cometmq_cluster: Cluster,
    capsys: pytest.CaptureFixture[str],
) -> None:
    with BlockingClient(cometmq_cluster.namesrv) as client:
        client.wait(Admin(client.inner.session).create_topic("t", queues=1))
        for number in range(3):
            client.send("t", f"body {number}".encode(), keys=(f"k{number}",), tag="ab"[number % 2])
    assert main(["message", "browse", "t", *words, "-n", cometmq_cluster.namesrv]) == 0
    assert capsys.readouterr().out.splitlines() == lines


def test_a_message_is_shown_by_key_id_and_place(
    orders: str, where: list[str], capsys: pytest.CaptureFixture[str]
) -> None:
    show = ["message", "show", orders]
    assert main([*show, "--key", "k1", "--limit", "1", "--json", *where]) == 0
    found = json.loads(capsys.readouterr().out)
    place = ["--queue", "0", "--offset", str(found["offset"])]
    for words in ([found["id"]], [found["offset_id"]], place):
        assert main([*show, *words, "--json", *where]) == 0
        assert json.loads(capsys.readouterr().out)["id"] == found["id"]
    assert main(["message", "tail", orders, "--from", "first", "-c", "2", *where]) == 0
    assert len(capsys.readouterr().out.splitlines()) == 2


@pytest.mark.parametrize(
    ("words", "code", "told"),
    [
        ("message show orders", 2, "give an id, or --key, or --queue and --offset"),
        ("message show orders NOPE", 1, "message 'NOPE': no broker has it"),
        ("message show orders --key none", 1, "no message with key 'none'"),
        ("message show orders --queue 9 --offset 1", 1, "queue '9': topic 'orders' has no"),
        ("message show orders --queue 0 --offset 9999", 1, "the queue holds offsets"),
        ("message browse nosuch", 1, "topic 'nosuch'"),
        ("message browse orders --from soon", 2, "'soon' is not first, last"),
        ("message tail orders --broker x", 1, "broker 'x': topic 'orders' has no queue there"),
        ("dlq show nosuch", 1, "group 'nosuch'"),
        ("offset show nosuch orders", 1, "group 'nosuch'"),
        ("group clone nosuch g orders", 1, "group 'nosuch'"),
        ("group config nosuch", 1, "group 'nosuch'"),
        ("group delete nosuch --yes", 1, "group 'nosuch'"),
        ("broker show nosuch", 1, "there is no broker 'nosuch'"),
        ("broker config get nosuch", 1, "broker 'nosuch'"),
        ("broker config get broker-a flushDiskTyp", 1, "(did you mean 'flushDiskType'?)"),
        ("broker config set broker-a flushDiskTyp=x", 1, "setting 'flushDiskTyp'"),
        ("namesrv kv get ns nosuch", 1, "key 'nosuch'"),
        ("topic config nosuch", 1, "there is no topic 'nosuch'"),
        ("topic delete nosuch --yes", 1, "topic 'nosuch'"),
        ("trace show NOPE --topic orders", 1, "message 'NOPE'"),
        ("transaction resume NOPE", 1, "no transaction that was given up has id NOPE"),
        ("acl accounts", 1, "start it with aclEnable=true"),
        ("cluster health --lag nosuch=5", 1, "not healthy: nosuch: "),
        ("cluster health --lag nosuch", 2, "GROUP=N"),
        ("cluster health --broker absent", 1, "absent: it is not registered"),
        ("cluster health --brokers 2", 1, "cluster: 1 broker registered, 2 needed"),
        ("cluster health --forget absent", 1, "broker 'absent': it was not seen before"),
    ],
)
def test_what_is_not_there_is_an_error(
    orders: str,
    words: str,
    code: int,
    told: str,
    where: list[str],
    capsys: pytest.CaptureFixture[str],
) -> None:
    assert main([*words.split(), *where]) == code
    shown = capsys.readouterr()
    assert told in shown.err.splitlines()[-1]


@pytest.mark.parametrize(
    "words",
    [
        "topic delete orders",
        "group delete g",
        "group forget g",
        "broker clean",
        "namesrv kv delete ns key",
        "dlq resend g",
        "acl white-list set 10.0.0.1",
    ],
)
def test_what_cannot_be_undone_needs_consent(
    orders: str,
    words: str,
    client: BlockingClient,
    where: list[str],
    capsys: pytest.CaptureFixture[str],
) -> None:
    assert main(["group", "create", "g", "--if-not-exists", *where]) == 0
    assert main(["namesrv", "kv", "put", "ns", "key", "v", *where]) == 0
    capsys.readouterr()
    assert main([*words.split(), *where]) == 2
    shown = capsys.readouterr()
    assert "This cannot be undone: add --yes to do it" in shown.err
    assert shown.out == ""
    admin = Admin(client.inner.session)
    assert orders in client.wait(admin.list_topics())
    assert client.wait(admin.knows_group("g"))


def test_what_harms_clients_until_it_is_undone_needs_consent(
    orders: str, where: list[str], capsys: pytest.CaptureFixture[str]
) -> None:
    assert main(["topic", "permissions", orders, "R", *where]) == 2
    assert "need more than 'R' will fail. It can be undone: add --yes" in capsys.readouterr().err


def test_a_refused_change_names_servers_and_reason_once(
    orders: str, where: list[str], capsys: pytest.CaptureFixture[str]
) -> None:
    assert main(["config", "set", "listenPort=1", *where]) == 1
    shown = capsys.readouterr()
    reason = "setting 'listenPort': it cannot be changed while the broker runs"
    assert shown.err.startswith(f"cometmq config: not changed on broker-a: {reason}")
    assert "refused request" not in shown.out + shown.err
    assert main(["config", "set", "fileReservdTime=1", *where]) == 1
    assert "did you mean 'fileReservedTime'?" in capsys.readouterr().err


def test_dead_letters_are_listed_and_sent_again_once(
    cometmq_cluster: Cluster, capsys: pytest.CaptureFixture[str]
) -> None:
    where = ["-n", cometmq_cluster.namesrv]
    with BlockingClient(cometmq_cluster.namesrv, offset_persist_interval_ms=50) as client:
        client.wait(Admin(client.inner.session).create_topic("t", queues=1))
        client.send("t", b"poison", keys=("k",))
        with client.subscribe("t", group="g", start="first") as given:
            next(iter(given)).retry(-1)  # dead at once
    assert main(["dlq", "list", "--json", *where]) == 0
    assert json.loads(capsys.readouterr().out)["letters"] == 1
    assert main(["dlq", "show", "g", *where]) == 0
    assert "origin=t retries=" in capsys.readouterr().out
    for words, outcome in (
        (["--dry-run"], "planned"),
        (["--yes"], "sent"),
        (["--yes"], "repeated"),
    ):
        assert main(["dlq", "resend", "g", *words, "--json", *where]) == 0
        assert json.loads(capsys.readouterr().out)["outcome"] == outcome
    assert main(["dlq", "resend", "g", "--id", "NOPE", "--yes", *where]) == 1
    assert "has no dead letter NOPE" in capsys.readouterr().err
    assert main(["message", "browse", "t", "-f", "%k ", *where]) == 0
    assert capsys.readouterr().out == "k k "


def test_the_life_of_a_message_is_drawn(
    orders: str, client: BlockingClient, where: list[str], capsys: pytest.CaptureFixture[str]
) -> None:
    sent = client.send(orders, b"x")
    with client.subscribe(orders, group="reader", start="first") as given:
        next(iter(given)).ack()
    assert main(["trace", "show", sent.message_id, "--topic", orders, *where]) == 0
    lines = capsys.readouterr().out.splitlines()
    assert lines[0] == f"message {sent.message_id}"
    assert any(" stored " in line for line in lines)
    assert any(line.startswith("  group reader: ") for line in lines)


def test_a_cluster_is_checked_and_bundled(
    orders: str, where: list[str], tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    assert main(["cluster", "health", "--exit-when-healthy", "--timeout", "20", *where]) == 0
    assert "answers, 1 broker\n" in capsys.readouterr().out
    words = ["cluster", "health", "--exit-when-healthy", "--timeout", "0", "--slaves", "1"]
    assert main([*words, *where]) == 1
    assert "not healthy: broker-a: master and 0 slaves" in capsys.readouterr().err
    file = tmp_path / "b.tar.gz"
    assert main(["debug", "bundle", str(file), *where]) == 0
    assert f"wrote path={file}" in capsys.readouterr().out
    with tarfile.open(file) as bundle:
        assert any(name.endswith("manifest.json") for name in bundle.getnames())
    assert main(["debug", "bundle", str(file), *where]) == 1
    assert "File exists" in capsys.readouterr().err


def test_a_broker_that_health_saw_before_is_missed(
    where: list[str], capsys: pytest.CaptureFixture[str]
) -> None:
    words = ["cluster", "health", "--disk", "1", *where]
    assert main(words) == 0
    (name_server,) = where[1:]
    seen = seenbrokers.load([name_server], SystemClock().wall_ms())
    assert set(seen) == {"broker-a"}
    seenbrokers.save([name_server], {**seen, "broker-z": seen["broker-a"]})
    capsys.readouterr()
    for more in ([], ["--exit-when-healthy", "--timeout", "0.1"]):
        assert main([*words, *more]) == 1
        told = capsys.readouterr().err
        assert "broker-z: it is not registered, and was at 20" in told
        assert told.endswith("(if gone for good: cometmq cluster health --forget broker-z)\n")
    assert main([*words, "--no-memory"]) == 0
    assert main([*words, "--forget", "broker-z"]) == 0
    assert main(words) == 0


def test_a_broker_that_leaves_while_health_waits_is_missed_later(
    where: list[str], capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    async def left(_: Admin, limits: HealthLimits, **__: int) -> HealthReport:
        lost = Check(Aspect.REGISTRATION, "broker-z", False, "it is not registered")
        seen = {"broker-a": SystemClock().wall_ms(), "broker-z": SystemClock().wall_ms()}
        raise NotHealthy(HealthReport((lost,), frozenset({"broker-a"}), seen), 1)

    monkeypatch.setattr("cometmq.admin.health.wait_until_healthy", left)
    words = ["cluster", "health", "--exit-when-healthy", *where]
    forget = " (if gone for good: cometmq cluster health --forget broker-z)"
    assert main(words) == 1
    assert forget in capsys.readouterr().err
    assert set(seenbrokers.load(where[1:], SystemClock().wall_ms())) == {"broker-a", "broker-z"}
    assert main([*words, "--no-memory"]) == 1
    assert forget not in capsys.readouterr().err


def test_a_message_does_not_steer_the_terminal() -> None:
    odd = "a\x1b]0;x\nb"
    row = replace(ROW, keys=[odd], id=odd, broker=odd, body=odd, properties={odd: odd})
    letter = DeadLetterRow("g", odd, None, 1, row)
    for line in (row.line(), letter.line(), cell(row.properties)):
        assert line.isprintable(), line
