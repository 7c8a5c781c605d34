"""What a benchmark's run found: spreads, ratios, the document, the table, the check for falls."""

from __future__ import annotations

from pathlib import Path

import msgspec
import pytest

from benchmarks import figures
from benchmarks.figures import Document, Recorded, Row, Spread


def row(ours: float, java: float, *, name: str = "sends", **changes: object) -> Row:
    made = Row(name, "messages/s", "more", 4.5)
    made.rounds = {"cometmq": [ours], figures.REFERENCE: [java]}
    for key, value in changes.items():
        setattr(made, key, value)
    return made


def document(*rows: Row) -> Document:
    return Document(
        at="2026-01-02 03:04",
        machine={"cores": "2"},
        versions={"cometmq": "abc"},
        options={"rounds": "3"},
        peers={"cometmq": "its defaults"},
        rows=list(rows),
        left_out=["nats: go is missing; `get go` gets it"],
    )


@pytest.mark.parametrize(
    ("values", "found"),
    [
        ([], None),
        ([3.0], Spread(3.0, 3.0, 3.0)),
        ([5.0, 1.0, 3.0], Spread(3.0, 1.0, 5.0)),
        ([4.0, 2.0], Spread(3.0, 2.0, 4.0)),
    ],
)
def test_a_spread_is_the_median_and_the_ends(values: list[float], found: Spread | None) -> None:
    assert figures.spread(values) == found


def test_a_ratio_is_of_medians() -> None:
    made = row(0, 0)
    made.rounds = {"cometmq": [100.0, 900.0, 300.0], figures.REFERENCE: [50.0, 100.0, 1.0]}
    assert made.ratio() == 6.0


def test_a_row_without_one_side_has_no_ratio() -> None:
    assert row(1, 1, rounds={"cometmq": [1.0]}).ratio() is None
    assert row(1, 1, rounds={"cometmq": [1.0], figures.REFERENCE: []}).ratio() is None
    assert row(1, 0).ratio() is None


def test_a_row_is_held_against_its_limit() -> None:
    made = row(8, 2, against=figures.LIMIT)
    made.rounds[figures.LIMIT] = [10.0]
    assert made.ratio() == 0.8


def test_a_document_comes_back_from_json_with_its_spreads_beside_it() -> None:
    made = document(row(9, 2))
    data = figures.encode(made)
    assert figures.decode(data) == made
    fields = msgspec.json.decode(data)["rows"][0]
    assert fields["ratio"] == 4.5
    assert fields["spread"]["cometmq"] == {"median": 9.0, "low": 9.0, "high": 9.0}


def test_foreign_json_is_refused() -> None:
    with pytest.raises(msgspec.ValidationError):
        figures.decode(b'{"rows": 3}')


@pytest.mark.parametrize(
    ("value", "text"),
    [
        (0, "0"), (0.123, "0.12"), (12.345, "12.3"), (123.4, "123"), (1_234, "1 230"),
        (987_654, "988 000"), (1_234_567, "1 230 000"),
    ],
)  # fmt: skip
def test_three_digits_count(value: float, text: str) -> None:
    assert figures.number_text(value) == text


def test_the_table_has_a_line_a_row_and_says_what_is_missing() -> None:
    first = row(9, 2)
    first.rounds["cometmq"] = [9.0, 8.0, 10.0]
    second = row(3, 1, name="waits", better="less", wanted=0.45, problems=["kafka: 3 errors"])
    second.rounds["kafka"] = []
    lines = figures.table(document(first, second)).splitlines()
    assert lines[0] == "| case | unit | cometmq | rocketmq-4.9.7 | kafka | ratio | wanted |"
    assert lines[2] == (
        "| sends | messages/s | 9.00 (8.00 to 10.0) | 2.00 |  | 4.50 | at least 4.5 |"
    )
    assert lines[3].endswith("| 3.00 | at most 0.45 |")
    text = "\n".join(lines)
    assert "left out: nats: go is missing" in text
    assert "not counted: kafka: 3 errors" in text
    assert "cores 2" in text


def test_columns_stand_in_one_order_whatever_comes_first() -> None:
    made = row(1, 1)
    made.rounds = {"limit": [1.0], "nats": [1.0], "cometmq": [1.0]}
    assert figures.columns([made, row(1, 1)]) == [
        "cometmq", figures.REFERENCE, "nats", "limit",
    ]  # fmt: skip


@pytest.mark.parametrize(
    ("better", "recorded", "now", "share"),
    [
        ("more", 4.0, 3.79, 0.0525), ("more", 4.0, 3.81, None), ("more", 4.0, 9.0, None),
        ("less", 0.5, 0.53, 0.0566), ("less", 0.5, 0.52, None), ("less", 0.5, 0.1, None),
    ],
)  # fmt: skip
def test_more_than_five_percent_is_a_fall(
    better: str, recorded: float, now: float, share: float | None
) -> None:
    made = document(row(now, 1, better=better))
    known = {"sends": Recorded(recorded, "more", "before")}
    found = figures.falls(made, known)
    assert [fall.share for fall in found] == ([] if share is None else [share])


def test_a_row_without_a_recorded_ratio_or_a_ratio_does_not_fall() -> None:
    made = document(row(1, 9, name="new"), row(1, 1, rounds={}))
    assert figures.falls(made, {"sends": Recorded(4.0, "more", "before")}) == []


def test_recorded_ratios_come_back_from_their_file(tmp_path: Path) -> None:
    path = tmp_path / "recorded.json"
    assert figures.load_recorded(path) == {}
    made = figures.recorded_of(document(row(9, 2), row(1, 1, name="alone", rounds={})))
    assert made == {"sends": Recorded(4.5, "more", "2026-01-02 03:04")}
    figures.save_recorded(path, made)
    assert figures.load_recorded(path) == made
