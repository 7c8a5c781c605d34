"""Messages from the command line and back."""

import io
import json
import os
import signal
import threading
import time

import pytest

from cometmq import BlockingClient
from cometmq.admin.api import Admin
from cometmq.cli.main import main
from cometmq.testing.cluster import Cluster


def test_what_is_sent_is_consumed(
    cometmq_cluster: Cluster, capsys: pytest.CaptureFixture[str]
) -> None:
    where = ["-n", cometmq_cluster.namesrv]
    words = ["send", "regions", "Canillo", "--tag", "update", "--key", "AD-02", "--key", "AD"]
    assert main([*words, "--property", "source=test", *where]) == 0
    sent = capsys.readouterr().out
    assert sent.startswith("sent id=")
    assert "status=OK" in sent

    wanted = ["--group", "readers", "--count", "1", "--timeout", "60", "--json"]
    assert main(["consume", "regions", *wanted, *where]) == 0
    message = json.loads(capsys.readouterr().out)
    assert message["body"] == "Canillo"
    assert (message["tag"], message["keys"]) == ("update", ["AD-02", "AD"])
    assert f"id={message['id']} " in sent


def test_every_line_is_a_message_and_the_filter_holds(
    cometmq_cluster: Cluster,
    capsys: pytest.CaptureFixture[str],
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    where = ["-n", cometmq_cluster.namesrv]
    monkeypatch.setattr("sys.stdin", io.TextIOWrapper(io.BytesIO(b"one\ntwo\n\nthree\n")))
    assert main(["send", "lines", "--lines", "--tag", "a", "--order-key", "k", *where]) == 0
    assert main(["send", "lines", "other", "--tag", "b", "--json", *where]) == 0
    assert len(capsys.readouterr().out.splitlines()) == 4

    wanted = ["--group", "readers", "--filter", "a", "--count", "3", "--timeout", "20"]
    assert main(["consume", "lines", *wanted, *where]) == 0
    lines = capsys.readouterr().out.splitlines()
    assert [line.rsplit(" ", 1)[1] for line in lines] == ["one", "two", "three"]


def test_too_few_messages_before_the_timeout_is_a_failure(
    cometmq_cluster: Cluster, capsys: pytest.CaptureFixture[str]
) -> None:
    where = ["-n", cometmq_cluster.namesrv]
    assert main(["topic", "create", "empty", *where]) == 0
    wanted = ["--group", "readers", "--count", "1", "--timeout", "0.2"]
    assert main(["consume", "empty", *wanted, *where]) == 1
    assert "body" not in capsys.readouterr().out


def test_a_topic_that_is_not_there_is_said(
    cometmq_cluster: Cluster, capsys: pytest.CaptureFixture[str]
) -> None:
    where = ["-n", cometmq_cluster.namesrv]
    assert main(["consume", "nosuch", "--group", "readers", "--timeout", "3", *where]) == 1
    told = capsys.readouterr().err
    assert "topic 'nosuch'" in told
    assert "waiting for it" in told


def test_a_signal_ends_consuming_cleanly(
    cometmq_cluster: Cluster, capsys: pytest.CaptureFixture[str]
) -> None:
    where = ["-n", cometmq_cluster.namesrv]
    assert main(["topic", "create", "empty", *where]) == 0
    interrupting = threading.Thread(
        target=interrupt_a_member, args=(cometmq_cluster.namesrv, "readers"), daemon=True
    )
    interrupting.start()
    assert main(["consume", "empty", "--group", "readers", *where]) == 0
    interrupting.join()


def test_signals_after_the_last_message_do_not_change_the_exit_code(
    cometmq_cluster: Cluster,
) -> None:
    where = ["-n", cometmq_cluster.namesrv]
    assert main(["send", "last", "one", *where]) == 0
    assert main(["consume", "last", "--group", "readers", "--count", "1", *where]) == 0
    for number in (signal.SIGTERM, signal.SIGINT):
        assert signal.getsignal(number) is signal.SIG_IGN


def interrupt_a_member(namesrv: str, group: str) -> None:
    """Interrupt this process once a group has a member, which handles signals by then."""
    with BlockingClient(namesrv) as client:
        admin = Admin(client.inner.session)
        while client.wait(admin.consumer_connections(group)) is None:
            time.sleep(0.02)
    os.kill(os.getpid(), signal.SIGINT)


@pytest.mark.parametrize(
    ("words", "code"),
    [
        (["send", "bad topic!", "x"], 1),
        (["send", "t", "x", "--property", "nonsense"], 2),
        (["send", "t", "x", "-n", ";"], 2),
        (["consume", "t"], 2),
        (["send"], 2),
    ],
)
def test_bad_words_are_refused(
    words: list[str], code: int, capsys: pytest.CaptureFixture[str]
) -> None:
    assert main(words) == code
    assert capsys.readouterr().err != ""


def test_no_name_server_is_one_line(capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["send", "t", "x", "-n", "127.0.0.1:1"]) == 1
    line = capsys.readouterr().err.splitlines()[-1]
    assert line.startswith("cometmq send: 127.0.0.1:1: ")
