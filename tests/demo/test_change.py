"""The message body: its exact JSON, and what is refused."""

import json

import pytest

from cometmq.demo.change import BadChange, Change, decode
from tests.demo.worlds import small_world

ROW = small_world()[2]


def test_the_body_is_the_documented_json() -> None:
    body = Change("regions", "update", "AD-02", 4711, 1_700_000_000_000, ROW).encode()
    assert json.loads(body) == {
        "table": "regions",
        "op": "update",
        "key": "AD-02",
        "change": 4711,
        "at_ms": 1_700_000_000_000,
        "row": ROW,
    }
    assert list(json.loads(body)) == ["table", "op", "key", "change", "at_ms", "row"]


def test_a_deletion_carries_a_null_row() -> None:
    body = Change("regions", "delete", "AD-02", 5, 6, None).encode()
    assert json.loads(body)["row"] is None
    assert decode(body).row is None


def test_a_body_comes_back_as_it_was() -> None:
    change = Change("regions", "insert", "AD-02", 1, 2, ROW)
    assert decode(change.encode()) == change


@pytest.mark.parametrize(
    "damage",
    [
        {"table": "planets"},
        {"op": "delete"},
        {"op": "rename"},
        {"row": None},
        {"row": {"code": "AD-02"}},
        {"row": ROW | {"code": "FR"}},
        {"change": "7"},
        {"at_ms": None},
    ],
)
def test_a_body_that_contradicts_itself_is_refused(damage: dict[str, object]) -> None:
    body = json.loads(Change("regions", "update", "AD-02", 1, 2, ROW).encode()) | damage
    with pytest.raises(BadChange):
        decode(json.dumps(body).encode())


@pytest.mark.parametrize("body", [b"", b"{", b"[]", b"\xff\xfe", b"null"])
def test_what_is_no_object_is_refused(body: bytes) -> None:
    with pytest.raises(BadChange):
        decode(body)
