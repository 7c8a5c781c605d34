"""Stored filters: how heartbeats change them, when they expire, and their file."""

from __future__ import annotations

from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any

import msgspec
import pytest

from cometmq.broker.config import BrokerConfig
from cometmq.broker.pull import filterdata
from cometmq.broker.pull.filterdata import BloomShape, FilterTable
from cometmq.broker.tables import TableDirectory, pretty
from cometmq.core.clock import VirtualClock
from cometmq.core.errors import StoreCorrupt
from cometmq.message import properties
from cometmq.net.tasks import Tasks
from cometmq.protocol.bodies import ConsumerData, SubscriptionData
from cometmq.protocol.fastjson import parse_json
from cometmq.store.queue.bitmaps import BitMaps
from tests.pace import processor_time_within

DAY_MS = 24 * 3_600_000


@asynccontextmanager
async def open_filters(
    directory: Path,
    clock: VirtualClock,
    config: BrokerConfig | None = None,
    bit_maps: BitMaps | None = None,
) -> AsyncIterator[FilterTable]:
    tasks = Tasks()
    made = TableDirectory(str(directory), clock, tasks)
    table = FilterTable(made, config or BrokerConfig(), bit_maps)
    table.load()
    try:
        yield table
    finally:
        await table.close()
        await tasks.close()


@pytest.fixture
def clock() -> VirtualClock:
    return VirtualClock()


def wanting(*expressions: str, version: int = 1, group: str = "g") -> ConsumerData:
    """Topic ``t0`` by the first expression, ``t1`` by the second..."""
    return ConsumerData(
        group,
        subscription_data_set=tuple(
            SubscriptionData(f"t{at}", text, version, expression_type="SQL92")
            for at, text in enumerate(expressions)
        ),
    )


async def test_heartbeats_bring_filters_and_newer_versions_replace_them(
    tmp_path: Path, clock: VirtualClock
) -> None:
    async with open_filters(tmp_path, clock) as table:
        table.subscribed(wanting("a = 1", version=5))
        found = table.get("t0", "g")
        assert found is not None
        assert (found.expression, found.client_version, found.dead) == ("a = 1", 5, False)
        assert found.born_time == clock.wall_ms()
        for older in (wanting("a = 2", version=4), wanting("a = 2", version=5)):
            table.subscribed(older)
            assert table.get("t0", "g") == found
        clock.advance(7)
        table.subscribed(wanting("a = 1", version=6))
        again = table.get("t0", "g")
        assert again is not None
        assert (again.client_version, again.born_time) == (6, found.born_time)
        table.subscribed(wanting("a = 2", version=7))
        newer = table.get("t0", "g")
        assert newer is not None
        assert (newer.expression, newer.born_time) == ("a = 2", clock.wall_ms())


async def test_filters_decide_on_bit_maps(tmp_path: Path, clock: VirtualClock) -> None:
    """With the setting, a filter counts as long as it is in the table, dead or alive."""
    config = BrokerConfig(enable_calc_filter_bit_map=True)
    text = properties.encode({"a": "1"})

    def mask(*groups: str) -> bytes:
        shape = BloomShape.of(20, 32)
        bits = {bit for group in groups for bit in shape.positions(f"{group}#t0")}
        return sum(1 << bit for bit in bits).to_bytes(14, "little")

    async with open_filters(tmp_path, clock, config, maps := BitMaps(0)) as table:
        assert not maps.wants("t0", 0)
        table.subscribed(wanting("a = 1"))
        table.subscribed(wanting("a = 2", group="h"))
        assert maps.wants("t0", 0)
        assert maps.of("t0", text) == mask("g")
        table.subscribed(wanting("a < 2", group="h", version=2))
        assert maps.wants("t0", 0)
        assert maps.of("t0", text) == mask("g", "h")
        table.group_gone("g")
        assert maps.of("t0", text) == mask("g", "h")
    async with open_filters(tmp_path, clock, config, maps := BitMaps(0)) as table:
        assert maps.wants("t0", 0)
        assert maps.of("t0", text) == mask("g", "h")
        clock.advance(DAY_MS)
        table.clean()
        assert not maps.wants("t0", 0)
    async with open_filters(tmp_path, clock, BrokerConfig(), maps := BitMaps(0)) as table:
        table.subscribed(wanting("a = 1"))
        assert not maps.wants("t0", 0)


async def test_tags_are_not_kept(tmp_path: Path, clock: VirtualClock) -> None:
    async with open_filters(tmp_path, clock) as table:
        for kind in ("TAG", None, ""):
            data = SubscriptionData("t0", "a || b", 1, expression_type=kind)
            table.subscribed(ConsumerData("g", subscription_data_set=(data,)))
        table.subscribed(wanting(""))
        assert table.get("t0", "g") is None


async def test_what_cannot_be_read_takes_the_place_of_nothing(
    tmp_path: Path, clock: VirtualClock, caplog: pytest.LogCaptureFixture
) -> None:
    async with open_filters(tmp_path, clock) as table:
        table.subscribed(wanting("a >"))
        assert table.get("t0", "g") is None
        table.subscribed(wanting("a = 1", version=2))
        table.subscribed(wanting("a >", version=3))
        assert table.get("t0", "g") is None
        assert "consumer filter unreadable group=g" in caplog.text


async def test_a_filter_dies_with_its_subscription_or_its_group_and_lives_again(
    tmp_path: Path, clock: VirtualClock
) -> None:
    async with open_filters(tmp_path, clock) as table:
        table.subscribed(wanting("a = 1", "b = 1"))
        table.subscribed(wanting("a = 1"))
        first, second = table.get("t0", "g"), table.get("t1", "g")
        assert first is not None
        assert second is not None
        assert (first.dead, second.dead, second.dead_time) == (False, True, clock.wall_ms())
        table.subscribed(wanting("c = 1", group="h"))
        table.group_gone("g")
        table.group_gone("g")
        dead, other = table.get("t0", "g"), table.get("t0", "h")
        assert dead is not None
        assert other is not None
        assert (dead.dead, other.dead) == (True, False)
        table.subscribed(wanting("a = 1"))
        alive = table.get("t0", "g")
        assert alive is not None
        assert (alive.dead, alive.dead_time) == (False, 0)


async def test_the_dead_are_dropped_after_a_day(tmp_path: Path, clock: VirtualClock) -> None:
    async with open_filters(tmp_path, clock) as table:
        table.subscribed(wanting("a = 1"))
        table.subscribed(wanting("a = 1", group="h"))
        clock.advance(2 * DAY_MS)
        table.group_gone("g")
        clock.advance(DAY_MS - 1)
        table.clean()
        assert table.get("t0", "g") is not None
        clock.advance(1)
        table.clean()
        assert table.get("t0", "g") is None
        assert table.get("t0", "h") is not None


async def test_a_start_finds_the_filters_and_takes_their_groups_for_gone(
    tmp_path: Path, clock: VirtualClock
) -> None:
    async with open_filters(tmp_path, clock) as table:
        table.subscribed(wanting("a = 1"))
        clock.advance(60_000)
        table.subscribed(wanting("b = 1", group="h"))
        before = table.get("t0", "g"), table.get("t0", "h")
    async with open_filters(tmp_path, clock) as table:
        old, young = table.get("t0", "g"), table.get("t0", "h")
        assert old is not None
        assert young is not None
        assert before[0] is not None
        assert old.dead_time == clock.wall_ms() - 30_000
        assert young.dead_time == young.born_time
        table.subscribed(wanting("a = 1"))
        table.subscribed(wanting("b = 1", group="h"))
        assert (table.get("t0", "g"), table.get("t0", "h")) == before
    clock.advance(2 * DAY_MS)
    async with open_filters(tmp_path, clock) as table:
        assert table.get("t0", "g") is not None  # it was alive when the broker stopped
    clock.advance(2 * DAY_MS)
    async with open_filters(tmp_path, clock) as table:
        assert table.get("t0", "g") is None


async def test_the_file_is_java_s(tmp_path: Path, clock: VirtualClock) -> None:
    async with open_filters(tmp_path, clock) as table:
        table.subscribed(wanting("a = 1"))
    found: Any = parse_json((tmp_path / "consumerFilter.json").read_bytes())
    assert found == {
        "filterDataByTopic": {
            "t0": {
                "groupFilterData": {
                    "g": {
                        "bloomFilterData": {
                            "bitNum": 112,
                            "bitPos": list(BloomShape.of(20, 32).positions("g#t0")),
                        },
                        "bornTime": clock.wall_ms(),
                        "clientVersion": 1,
                        "consumerGroup": "g",
                        "dead": False,
                        "deadTime": 0,
                        "expression": "a = 1",
                        "expressionType": "SQL92",
                        "topic": "t0",
                    }
                },
                "topic": "t0",
            }
        }
    }


async def test_the_file_has_each_topic_and_group_as_fastjson_writes_it(
    tmp_path: Path, clock: VirtualClock
) -> None:
    async with open_filters(tmp_path, clock) as table:
        assert b"".join(table._encode()) == b'{\n\t"filterDataByTopic":{}\n}'
        for group in ("h", "g", "i"):
            table.subscribed(wanting("a = 'x'", "b = 2", group=group))
        table.subscribed(wanting("a = 'x'", group="i"))
        table.group_gone("g")
        by_topic = {
            topic: {
                "groupFilterData": {
                    group: dict(sorted(msgspec.to_builtins(table.get(topic, group)).items()))
                    for group in ("g", "h", "i")
                },
                "topic": topic,
            }
            for topic in ("t0", "t1")
        }
        assert b"".join(table._encode()) == pretty({"filterDataByTopic": by_topic})


async def test_a_heartbeat_of_many_groups_costs_what_its_groups_cost(
    tmp_path: Path, clock: VirtualClock
) -> None:
    """Each filter is written into the file's text once, however many its topic has."""
    async with open_filters(tmp_path, clock) as table:
        with processor_time_within(1.5):
            for number in range(1_000):
                table.subscribed(wanting("a = 1", group=f"g{number}"))
            for number in range(1_000):
                table.subscribed(wanting("a = 1", version=2, group=f"g{number}"))


async def test_heartbeats_bring_so_many_new_words_at_a_time(
    tmp_path: Path, clock: VirtualClock
) -> None:
    def long(number: int) -> str:
        return " OR ".join(f"a{number} = {each}" for each in range(30))

    many = [wanting(long(number), group=f"g{number}") for number in range(5)]
    async with open_filters(tmp_path, clock) as table:
        for data in many:
            table.subscribed(data)
        kept = [table.get("t0", data.group_name) is not None for data in many]
        assert kept == [True, True, False, False, False]
        # Who pulls need not wait for its next heartbeat.
        table.register("g4", many[4].subscription_data_set[0])
        assert table.get("t0", "g4") is not None
        clock.advance(1_000)
        table.subscribed(many[3])
        assert table.get("t0", "g3") is not None
        # One that takes longer than the loop has is registered by the first pull.
        clock.advance(1_000)
        longer = wanting(" OR ".join(f"b = {each}" for each in range(70)), group="longer")
        table.subscribed(longer)
        assert table.get("t0", "longer") is None


async def test_the_table_is_bounded_and_the_dead_make_room(
    tmp_path: Path, clock: VirtualClock, monkeypatch: pytest.MonkeyPatch,
    caplog: pytest.LogCaptureFixture,
) -> None:  # fmt: skip
    monkeypatch.setattr(filterdata, "MAX_FILTERS", 6)
    monkeypatch.setattr(filterdata, "MAX_FILTERS_OF_TOPIC", 3)
    async with open_filters(tmp_path, clock) as table:
        for number in range(5):
            table.subscribed(wanting("a = 1", group=f"g{number}"))
        assert [table.get("t0", f"g{number}") is not None for number in range(5)] == [
            True, True, True, False, False,
        ]  # fmt: skip
        assert caplog.text.count("consumer filter table full") == 1
        table.group_gone("g0")
        table.subscribed(wanting("a = 2", version=2, group="g1"))  # a known one may change
        changed = table.get("t0", "g1")
        assert changed is not None
        assert changed.expression == "a = 2"
        clock.advance(60_000)
        table.subscribed(wanting("a = 1", group="g3"))
        assert table.get("t0", "g0") is None
        assert table.get("t0", "g3") is not None
        table.subscribed(wanting(*["a = 1"] * 9, group="h"))
        assert sum(table.get(f"t{number}", "h") is not None for number in range(9)) == 3
    monkeypatch.setattr(filterdata, "MAX_KEPT_CHARS", 100)
    async with open_filters(tmp_path / "other", clock) as table:
        table.subscribed(wanting("a = 1" + " " * 60, "a = 1" + " " * 60))
        assert table.get("t0", "g") is not None
        assert table.get("t1", "g") is None
        table.subscribed(wanting("a = 1" + " " * 120, version=2))
        kept = table.get("t0", "g")
        assert kept is not None
        assert kept.client_version == 1


async def test_what_cannot_be_read_is_said_once_a_second(
    tmp_path: Path, clock: VirtualClock, caplog: pytest.LogCaptureFixture
) -> None:
    async with open_filters(tmp_path, clock) as table:
        for number in range(50):
            table.subscribed(wanting("a=" * 300 + "a", "0" * 6_000, group=f"g{number}"))
        assert caplog.text.count("unreadable") == 1
        assert len(caplog.text) < 2_000
        clock.advance(1_000)
        table.subscribed(wanting("a >"))
        assert caplog.text.count("unreadable") == 2


async def test_a_bad_file_gives_way_to_its_backup_and_stops_a_start_without_one(
    tmp_path: Path, clock: VirtualClock
) -> None:
    async with open_filters(tmp_path, clock) as table:
        table.subscribed(wanting("a = 1"))
    path = tmp_path / "consumerFilter.json"
    path.with_suffix(".json.bak").write_bytes(path.read_bytes())
    path.write_bytes(b'{"filterDataByTopic":{"t0":{"groupFilterData":{"g":{}}}}}')
    async with open_filters(tmp_path, clock) as table:
        assert table.get("t0", "g") is not None
    for each in (path, path.with_suffix(".json.bak")):
        each.write_bytes(b'{"filterDataByTopic":3}')
    with pytest.raises(StoreCorrupt, match="filterDataByTopic"):
        async with open_filters(tmp_path, clock):
            pass
