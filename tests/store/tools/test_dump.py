"""Records as JSON: which ones, and what each says."""

import base64
import json
import os
import zlib
from pathlib import Path
from typing import Any

import msgspec
import pytest
from msgspec.structs import replace

from cometmq.core.clock import VirtualClock
from cometmq.message import properties as props
from cometmq.message.record import Record, decode_one, pack
from cometmq.store.config import StoreConfig
from cometmq.store.tools.directory import StoreInUse
from cometmq.store.tools.inspection import BodyForm, DumpSelection, as_json, dump
from cometmq.store.tools.logfile import Gap
from tests.golden import library
from tests.store.sealed import FILE_BYTES
from tests.store.stores import fill, log_of, opened, put
from tests.store.tools.logs import PLAIN
from tests.store.tools.verifying import contents, flip_byte


@pytest.fixture
def store(tmp_path: Path) -> tuple[Path, list[Record]]:
    """A store with two topics and its records."""
    clock = VirtualClock()
    made = opened(tmp_path / "s", clock, mapped_file_size_commit_log=FILE_BYTES)
    for first in range(0, 2_500, 500):
        fill(made, 500, first=first)
        put(made, "u", 1, b"other", keys=(f"u{first}", "k7"))
        made.commit()
        clock.advance(1_000)
    records = log_of(made)
    made.close()
    return tmp_path / "s", records


def dumped(root: Path, gaps: list[Gap] | None = None, **wanted: Any) -> list[Record]:
    before = contents(root)
    config = StoreConfig(store_path_root_dir=str(root))
    told = [] if gaps is None else gaps
    found = list(dump(config, DumpSelection(**wanted), on_gap=told.append))
    assert contents(root) == before
    return found


def test_everything_in_the_order_of_the_log(store: tuple[Path, list[Record]]) -> None:
    root, records = store
    assert dumped(root) == records


def test_what_is_wanted(store: tuple[Path, list[Record]]) -> None:
    root, records = store
    low, high = records[700].physical_offset, records[2_000].physical_offset
    assert dumped(root, start=low, stop=high) == records[700:2_000]
    assert dumped(root, start=low + 1, stop=low + 2) == []
    assert dumped(root, topic="u") == [each for each in records if each.topic == "u"]
    assert dumped(root, topic="nowhere") == []
    assert dumped(root, queue_id=2) == [each for each in records if each.queue_id == 2]
    since, until = records[600].store_ms, records[1_800].store_ms
    assert dumped(root, since_ms=since, until_ms=until) == [
        each for each in records if since <= each.store_ms < until
    ]
    assert [each.body[:6] for each in dumped(root, key="k7", topic="t")] == [b"000007"]
    assert len(dumped(root, key="k7")) == 6
    assert len(dumped(root, key="all", topic="t", queue_id=0)) == 834
    assert dumped(root, key="none") == []


def test_a_key_of_the_same_hash_is_not_wanted(tmp_path: Path) -> None:
    made = opened(tmp_path)
    put(made, keys=("unique", "Aa"))
    put(made, keys=("other", "BB"))
    made.commit()
    made.close()
    assert len(dumped(tmp_path, key="Aa")) == 1
    assert len(dumped(tmp_path, key="other")) == 1


def test_a_java_broker_s_store(tmp_path: Path) -> None:
    root = library.unpack_store("killed", tmp_path)
    facts = library.stores()["killed"]["topics"]["golden"]["messages"]
    found = {
        value["offset"]: value
        for value in (as_json(each, BodyForm.AUTO) for each in dumped(root, topic="golden"))
    }
    assert len(found) == len(facts)
    for fact in facts:
        value = found[fact["commitLogOffset"]]
        assert value["id"] == fact["msgId"]
        assert value["queue_offset"] == fact["queueOffset"]
        assert value["body"][:64] == fact["body"]
        assert len(value["body"]) == fact["bodySize"]


def test_damage_is_told_and_stepped_over(store: tuple[Path, list[Record]]) -> None:
    root, records = store
    bad = records[5]
    flip_byte(root / "commitlog" / f"{0:020d}", bad.physical_offset + 5)
    gaps: list[Gap] = []
    assert dumped(root, gaps) == [each for each in records if each is not bad]
    assert [(each.start, each.stop) for each in gaps] == [
        (bad.physical_offset, bad.physical_offset + bad.size_bytes)
    ]
    gaps.clear()
    dumped(root, gaps, start=FILE_BYTES)
    assert gaps == []


def test_a_running_store_only_on_demand(tmp_path: Path) -> None:
    made = opened(tmp_path)
    fill(made, 5)
    with pytest.raises(StoreInUse):
        dumped(tmp_path)
    found = dump(made.config, DumpSelection(), while_running=True)
    assert len(list(found)) == 5
    made.close()


def test_one_record_as_json() -> None:
    record = decode_one(pack(replace(PLAIN, physical_offset=77, topic="t", body="grün".encode())))
    value = as_json(record, BodyForm.AUTO)
    assert json.loads(msgspec.json.encode(value)) == {
        "offset": 77, "size": record.size_bytes, "topic": "t", "queue": 3, "queue_offset": 5,
        "store_ms": 1_700_000_000_000, "born_ms": 1, "flag": 0, "sys_flag": 0,
        "reconsume_times": 0, "prepared_offset": 0, "id": "k1", "born_host": "10.0.0.9:4321",
        "store_host": "10.0.0.1:10911", "properties": {"UNIQ_KEY": "k1", "TAGS": "a"},
        "body": "grün",
    }  # fmt: skip
    assert "body" not in as_json(record, BodyForm.NONE)
    assert (
        as_json(record, BodyForm.BASE64)["body_base64"]
        == base64.b64encode("grün".encode()).decode()
    )


def test_bodies_that_are_no_text() -> None:
    record = decode_one(pack(replace(PLAIN, body=b"\xff\xfe")))
    assert as_json(record, BodyForm.AUTO)["body_base64"] == "//4="
    assert as_json(record, BodyForm.TEXT)["body"] == "\ufffd\ufffd"


def test_packed_and_damaged_bodies() -> None:
    packed = decode_one(pack(replace(PLAIN, body=zlib.compress(b"text"), sys_flag=1)))
    assert as_json(packed, BodyForm.AUTO)["body"] == "text"
    broken = decode_one(pack(replace(PLAIN, body=b"no zlib", sys_flag=1)))
    value = as_json(broken, BodyForm.AUTO)
    assert value["body"] == "no zlib"
    assert "cannot be decompressed" in value["problem"]
    wrong = as_json(replace(PLAIN, body_crc=5), BodyForm.AUTO)
    assert "CRC" in wrong["problem"]


def test_a_packed_body_that_is_broken_may_have_the_key(tmp_path: Path) -> None:
    made = opened(tmp_path)
    put(made, body=b"no zlib", keys=("wanted",), sys_flag=1)
    made.commit()
    made.close()
    assert len(dumped(tmp_path, key="wanted")) == 1
    assert props.UNIQ_KEY in as_json(dumped(tmp_path)[0], BodyForm.NONE)["properties"]


@pytest.mark.parametrize("loss", ["zeros", "end", "all", "file"])
def test_a_lost_file_does_not_end_the_dump(store: tuple[Path, list[Record]], loss: str) -> None:
    root, records = store
    path = root / "commitlog" / f"{FILE_BYTES:020d}"
    start = FILE_BYTES
    if loss == "zeros":
        path.write_bytes(bytes(FILE_BYTES))
    elif loss == "end":
        start = next(each.physical_offset for each in records if each.physical_offset > 1.5 * start)
        os.truncate(path, start - FILE_BYTES)
    elif loss == "all":
        os.truncate(path, 0)
    else:
        path.unlink()
    gaps: list[Gap] = []
    left = [each for each in records if not start <= each.physical_offset < 2 * FILE_BYTES]
    assert left[-1].physical_offset > 2 * FILE_BYTES
    assert dumped(root, gaps) == left
    assert [(each.start, each.stop) for each in gaps] == [(start, 2 * FILE_BYTES)]
