"""SQL92 filters of consumer groups: config/consumerFilter.json (upstream:
ConsumerFilterManager.java, ConsumerFilterData.java).

    {"filterDataByTopic":{topic:{"groupFilterData":{group:{"bloomFilterData":{"bitNum","bitPos"},
     "bornTime","clientVersion","consumerGroup","dead","deadTime","expression","expressionType",
     "topic"}},"topic"}}}

Heartbeats bring filters in; one whose group has no member left is dead, and is dropped a day later.
A pull that does not carry its subscription is filtered by what stands here. The bloom positions are
of no use to this broker: a Java broker throws the whole table away when they are not those that it
would compute itself.
"""

from __future__ import annotations

import logging
import os
from collections.abc import Iterator
from itertools import chain
from typing import TYPE_CHECKING, Any, Final

import msgspec

from cometmq.broker.bloom import BloomShape
from cometmq.broker.prettyjson import EntryTexts
from cometmq.broker.tables import TableFile
from cometmq.filter.sqltext import BadFilter, parse

if TYPE_CHECKING:
    from cometmq.broker.config import BrokerConfig
    from cometmq.core.clock import Clock
    from cometmq.net.tasks import Tasks
    from cometmq.protocol.bodies import ConsumerData, Subscription
    from cometmq.store.files import Files

log = logging.getLogger(__name__)

TAG: Final = "TAG"
CLEAN_INTERVAL_MS: Final = 60_000
#: A start does not know since when a group is away: this long, as upstream has it.
_AWAY_AT_START_MS: Final = 30_000


class BloomData(msgspec.Struct, rename="camel", frozen=True):
    """Where a group's bits lie among ``bit_num``."""

    bit_num: int
    bit_pos: tuple[int, ...]


class FilterData(msgspec.Struct, rename="camel", frozen=True):
    """One group's filter of one topic. Times are wall ms; ``dead_time`` 0 means never."""

    topic: str
    consumer_group: str
    expression: str
    expression_type: str
    client_version: int
    born_time: int
    dead_time: int = 0
    dead: bool = False
    bloom_filter_data: BloomData | None = None


class FilterTable:
    """All stored filters."""

    def __init__(
        self,
        config_directory: str,
        *,
        config: BrokerConfig,
        clock: Clock,
        tasks: Tasks,
        files: Files | None = None,
    ) -> None:
        self._config = config
        self._clock = clock
        self._bloom = BloomShape.of(
            config.max_error_rate_of_bloom_filter, config.expect_consumer_num_use_filter
        )
        self._table: dict[str, dict[str, FilterData]] = {}
        self._texts = EntryTexts()
        self._file = TableFile(
            os.path.join(config_directory, "consumerFilter.json"),
            self._encode,
            clock=clock,
            tasks=tasks,
            files=files,
        )

    def load(self) -> None:
        """Read the file; whoever is in it counts as gone until a heartbeat comes. Raises
        StoreCorrupt."""
        now_ms = self._clock.wall_ms()
        for by_group in (self._file.read(_read, required_key="filterDataByTopic") or {}).values():
            for data in by_group.values():
                if not data.dead_time:
                    data = _died(data, max(now_ms - _AWAY_AT_START_MS, data.born_time))
                self._put(data)
        self.clean()

    async def close(self) -> None:
        """Write what is not written yet."""
        await self._file.close()

    def get(self, topic: str, group: str) -> FilterData | None:
        """The filter of a group, dead or alive."""
        return self._table.get(topic, {}).get(group)

    def subscribed(self, data: ConsumerData) -> None:
        """A consumer told what its group wants."""
        group, wanted = data.group_name, data.subscription_data_set
        for subscription in wanted:
            if subscription.expression_type not in (None, "", TAG) and subscription.sub_string:
                self._register(group, subscription)
        topics = {subscription.topic for subscription in wanted}
        for topic, by_group in self._table.items():
            if group in by_group and topic not in topics:
                self._bury(by_group[group])

    def group_gone(self, group: str) -> None:
        """A group lost its last member."""
        for by_group in self._table.values():
            if group in by_group:
                self._bury(by_group[group])

    def clean(self) -> None:
        """Drop the filters of groups that are gone for the configured time."""
        limit_ms = self._clock.wall_ms() - self._config.filter_data_clean_time_span
        for topic, by_group in list(self._table.items()):
            for group in [name for name, data in by_group.items() if data.dead]:
                if by_group[group].dead_time <= limit_ms:
                    log.info("consumer filter expired topic=%s group=%s", topic, group)
                    self._drop(topic, group)

    async def clean_forever(self) -> None:
        """Clean in an interval."""
        while True:
            await self._clock.sleep_ms(CLEAN_INTERVAL_MS)
            self.clean()

    # ------------------------------------------------------------------------------------ internals

    def _register(self, group: str, wanted: Subscription) -> None:
        known = self.get(wanted.topic, group)
        kind = wanted.expression_type or TAG
        if known is not None and wanted.sub_version < known.client_version:
            return
        if known is not None and (known.expression, known.expression_type) == (
            wanted.sub_string,
            kind,
        ):
            if known.dead or known.client_version != wanted.sub_version:
                alive = msgspec.structs.replace(
                    known, client_version=wanted.sub_version, dead_time=0, dead=False
                )
                self._put(alive)
            return
        if known is not None and wanted.sub_version == known.client_version and not known.dead:
            return  # members of the group do not agree; the first one of a version counts
        try:
            parse(wanted.sub_string)
        except BadFilter as error:
            log.warning("consumer filter unreadable group=%s error=%s", group, error)
            if known is not None:
                self._drop(wanted.topic, group)
            return
        positions = self._bloom.positions(f"{group}#{wanted.topic}")
        self._put(
            FilterData(
                wanted.topic,
                group,
                wanted.sub_string,
                kind,
                wanted.sub_version,
                self._clock.wall_ms(),
                bloom_filter_data=BloomData(self._bloom.bits, positions),
            )
        )

    def _bury(self, data: FilterData) -> None:
        if not data.dead:
            self._put(_died(data, self._clock.wall_ms()))

    def _put(self, data: FilterData) -> None:
        self._table.setdefault(data.topic, {})[data.consumer_group] = data
        self._changed(data.topic)

    def _drop(self, topic: str, group: str) -> None:
        by_group = self._table[topic]
        del by_group[group]
        if not by_group:
            del self._table[topic]
        self._changed(topic)

    def _changed(self, topic: str) -> None:
        by_group = self._table.get(topic)
        if by_group is None:
            self._texts.drop(topic)
        else:
            texts = {name: _sorted_fields(data) for name, data in sorted(by_group.items())}
            self._texts.put(topic, {"groupFilterData": texts, "topic": topic})
        self._file.touch()

    def _encode(self) -> Iterator[bytes]:
        return chain((b'{\n\t"filterDataByTopic":',), self._texts.pieces(), (b"\n}",))


def _died(data: FilterData, at_ms: int) -> FilterData:
    return msgspec.structs.replace(data, dead_time=at_ms, dead=True)


def _sorted_fields(data: FilterData) -> dict[str, object]:
    return dict(sorted(msgspec.to_builtins(data).items()))


class _OfTopic(msgspec.Struct, rename="camel", frozen=True):
    group_filter_data: dict[str, FilterData] = {}


def _read(found: dict[str, Any]) -> dict[str, dict[str, FilterData]]:
    try:
        table = msgspec.convert(found["filterDataByTopic"] or {}, dict[str, _OfTopic], strict=False)
    except msgspec.ValidationError as error:
        raise ValueError(f"filterDataByTopic: {error}") from None
    return {topic: dict(of_topic.group_filter_data) for topic, of_topic in table.items()}
