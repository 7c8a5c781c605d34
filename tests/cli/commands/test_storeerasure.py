"""``cometmq store redact`` and ``compact``: they count unless they are told where to erase."""

import io
import json
import sys
from pathlib import Path

import pytest

from cometmq.cli.main import main
from tests.store.stores import opened, put
from tests.store.tools.verifying import contents, verified


@pytest.fixture
def store(tmp_path: Path) -> Path:
    root = tmp_path / "s"
    made = opened(root)
    for number in range(60):
        body = b"a message of some length, number %d" % number
        keys = (f"id-{number}", f"customer-{number % 10}")
        put(made, "orders", number % 2, body, tag="paid", keys=keys)
    put(made, "RMQ_SYS_TRACE_TOPIC", body=b"Pub\x01orders\x01customer-3\x01" * 2)
    made.commit()
    made.close()
    return root


def test_counting(store: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    before = contents(store)
    keys = tmp_path / "keys"
    keys.write_text("customer-3\n\nnobody\n")
    assert main(["store", "redact", str(store), "--keys-file", str(keys)]) == 0
    shown = capsys.readouterr()
    assert "orders: 6 messages, " in shown.out
    assert (
        "RMQ_SYS_TRACE_TOPIC: 0 messages, 0 bytes; 1 message that stays contains the" in shown.out
    )
    assert "1 of 2 keys were found; none of these numbers: 2" in shown.out
    assert "would erase 6 messages and change 1 log file\n" in shown.out
    assert "customer-3" not in shown.out
    assert shown.err == ""
    assert contents(store) == before


def test_a_copy(store: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    target = tmp_path / "copy"
    words = ["store", "redact", str(store), "--key", "customer-3", "--to", str(target)]
    assert main(words) == 1
    shown = capsys.readouterr()
    assert f"erased 6 messages in {target}: changed 1 log file, " in shown.out
    assert f"left: {store}: the original store is unchanged" in shown.out
    assert "Not everything is erased" in shown.err
    assert verified(target).findings == []
    assert main(words) == 2
    assert "is not empty" in capsys.readouterr().err


def test_in_place(
    store: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(sys, "stdin", io.StringIO("customer-3\ncustomer-4\n"))
    words = ["store", "redact", str(store), "--keys-file", "-", "--mentions", "erase"]
    assert main([*words, "--in-place", "--json"]) == 0
    (line,) = capsys.readouterr().out.splitlines()
    found = json.loads(line)
    assert (found["root"], found["messages"], found["keys"]) == (str(store), 13, [6, 6])
    assert (found["mentions"], found["left"]) == (0, [])
    assert found["topics"][1]["first_stored_at"].startswith("2023-11-14T22:13:20")
    assert verified(store).findings == []
    assert main(["store", "redact", str(store), "--key", "customer-5"]) == 0
    assert "13 messages were erased by earlier runs" in capsys.readouterr().out


def test_compact(store: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["store", "compact", str(store), "orders"]) == 0
    assert "would erase 50 messages" in capsys.readouterr().out
    assert main(["store", "compact", str(store), "orders", "--in-place"]) == 0
    assert "erased 50 messages" in capsys.readouterr().out
    assert verified(store).findings == []
    assert main(["store", "compact", str(store), "orders"]) == 0
    assert "would erase 0 messages" in capsys.readouterr().out


@pytest.mark.parametrize(
    ("words", "problem"),
    [
        ([], "no key is given"),
        (["--keys-file", "missing"], "missing: No such file"),
        (["--key", "two words"], "key 1 is not one key"),
        (["--key", "k", "--to", "x", "--in-place"], "give either --to or --in-place"),
    ],
)
def test_what_cannot_be_done(
    store: Path, words: list[str], problem: str, capsys: pytest.CaptureFixture[str]
) -> None:
    assert main(["store", "redact", str(store), *words]) == 2
    assert problem in capsys.readouterr().err
