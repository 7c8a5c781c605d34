"""SQL92 filters of consumer groups: config/consumerFilter.json (upstream:
ConsumerFilterManager.java, ConsumerFilterData.java).

    {"filterDataByTopic":{topic:{"groupFilterData":{group:{"bloomFilterData":{"bitNum","bitPos"},
     "bornTime","clientVersion","consumerGroup","dead","deadTime","expression","expressionType",
     "topic"}},"topic"}}}

Heartbeats register filters. The filters of a group without members are dead, and are dropped a day
later (filterDataCleanTimeSpan). A pull that does not carry its subscription is filtered by its
group's entry in this table. The bloom positions are used in the bit maps of enableCalcFilterBitMap.
A Java broker discards the whole table unless they equal those that it computes itself (upstream:
BloomFilter.java; the hash is murmur3 x64 128 with seed 0).

The number of filters and of their characters is limited; newtexts.py limits the parsing of new
expressions. An expression that is not parsed with a heartbeat is parsed when the group pulls, or
with its next heartbeat.
"""

from __future__ import annotations

import logging
import math
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Final

import msgspec

from cometmq.broker.pull.newtexts import NewTexts
from cometmq.broker.tables import TableFile, pretty
from cometmq.filter.sqltext import BadFilter, parse

if TYPE_CHECKING:
    from cometmq.broker.config import BrokerConfig
    from cometmq.broker.tables import TableDirectory
    from cometmq.protocol.bodies import ConsumerData, SubscriptionData
    from cometmq.store.queue.bitmaps import BitMaps

log = logging.getLogger(__name__)


_MASK: Final = 2**64 - 1
_C1: Final = 0x87C37B91114253D5
_C2: Final = 0x4CF5AD432745937F


@dataclass(frozen=True, slots=True)
class BloomShape:
    """Shape of a bloom filter: ``bits`` in all, of which each name sets ``hashes``."""

    hashes: int
    bits: int

    @classmethod
    def of(cls, error_percent: int, names: int) -> BloomShape:
        """Return the shape for at most ``names`` names and an error rate of ``error_percent``
        (1 to 99)."""
        error = error_percent / 100
        hashes = math.ceil(math.log(error) / math.log(0.5))
        bits = math.ceil(
            names * (math.log(1 / error) / math.log(2)) * (math.log(math.e) / math.log(2))
        )
        return cls(hashes, 8 * math.ceil(bits / 8))

    def positions(self, name: str) -> tuple[int, ...]:
        """Return the bit positions of one name, in upstream's order."""
        both = murmur3_low(name.encode())
        first, second = _int32(both), _int32(both >> 32)
        found = []
        for number in range(1, self.hashes + 1):
            combined = _int32(first + number * second)
            found.append((~combined if combined < 0 else combined) % self.bits)
        return tuple(found)


def murmur3_low(data: bytes) -> int:
    """Return the low 64 bits of the murmur3 x64 128 hash of ``data``."""
    h1 = h2 = 0
    whole = len(data) - len(data) % 16
    for at in range(0, whole, 16):
        h1 = _rotated(h1 ^ _mix_first(int.from_bytes(data[at : at + 8], "little")), 27) + h2
        h1 = (h1 * 5 + 0x52DCE729) & _MASK
        h2 = _rotated(h2 ^ _mix_second(int.from_bytes(data[at + 8 : at + 16], "little")), 31) + h1
        h2 = (h2 * 5 + 0x38495AB5) & _MASK
    h1 ^= _mix_first(int.from_bytes(data[whole : whole + 8], "little"))
    h2 ^= _mix_second(int.from_bytes(data[whole + 8 :], "little"))
    h1, h2 = h1 ^ len(data), h2 ^ len(data)
    h1 = (h1 + h2) & _MASK
    h2 = (h2 + h1) & _MASK
    return (_finished(h1) + _finished(h2)) & _MASK


def _mix_first(word: int) -> int:
    return _rotated(word * _C1 & _MASK, 31) * _C2 & _MASK


def _mix_second(word: int) -> int:
    return _rotated(word * _C2 & _MASK, 33) * _C1 & _MASK


def _finished(word: int) -> int:
    word = (word ^ word >> 33) * 0xFF51AFD7ED558CCD & _MASK
    word = (word ^ word >> 33) * 0xC4CEB9FE1A85EC53 & _MASK
    return word ^ word >> 33


def _rotated(word: int, bits: int) -> int:
    return (word << bits | word >> 64 - bits) & _MASK


def _int32(value: int) -> int:
    return (value + 2**31) % 2**32 - 2**31


TAG: Final = "TAG"
CLEAN_INTERVAL_MS: Final = 60_000
#: Time for which each group is assumed to be absent at a start, as in upstream.
_AWAY_AT_START_MS: Final = 30_000
#: Limits of the table: filters in all, filters of one topic, characters of expressions and names.
MAX_FILTERS: Final = 10_000
MAX_FILTERS_OF_TOPIC: Final = 2_000
MAX_KEPT_CHARS: Final = 16 << 20
#: Limits of the set of expressions known to be valid: their number, and characters of each.
_MAX_READABLE: Final = 1_000
_MAX_READABLE_CHARS: Final = 1_024
_MAX_LOGGED_CHARS: Final = 200
#: Shortest interval between two warnings.
_QUIET_MS: Final = 1_000


class BloomData(msgspec.Struct, rename="camel", frozen=True):
    """Bit positions of a group in a bloom filter of ``bit_num`` bits."""

    bit_num: int
    bit_pos: tuple[int, ...]


class FilterData(msgspec.Struct, rename="camel", frozen=True):
    """One group's filter of one topic. Times are wall ms; ``dead_time`` is 0 while it is alive."""

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
    """Stored filters by topic and group. With enableCalcFilterBitMap, ``bit_maps`` has them too.
    ``texts`` limits the parsing of new expressions of the whole broker."""

    def __init__(
        self,
        directory: TableDirectory,
        config: BrokerConfig,
        bit_maps: BitMaps | None = None,
        texts: NewTexts | None = None,
    ) -> None:
        self._config = config
        self._clock = directory.clock
        self._new_texts = texts or NewTexts(directory.clock.monotonic_ms())
        self._bloom = BloomShape.of(
            config.max_error_rate_of_bloom_filter, config.expect_consumer_num_use_filter
        )
        self._bit_maps = bit_maps if config.enable_calc_filter_bit_map else None
        if self._bit_maps is not None:
            self._bit_maps.begin(self._bloom.bits)
        self._table: dict[str, dict[str, FilterData]] = {}
        self._topics_of: dict[str, dict[str, None]] = {}
        #: The text of each filter in the file, by topic and group.
        self._texts: dict[str, dict[str, bytes]] = {}
        self._count = self._chars = self._dead = 0
        #: Called after each change.
        self.on_change: list[Callable[[], None]] = []
        self._readable: dict[str, None] = {}
        self._quiet_until_ms = 0
        self._file = TableFile(directory, "consumerFilter.json", self._encode)

    def load(self) -> None:
        """Read the file. Each group in it counts as gone until its next heartbeat.

        Raises StoreCorrupt if neither the file nor its backup can be read.
        """
        now_ms = self._clock.wall_ms()
        for by_group in (self._file.read(_read, required_key="filterDataByTopic") or {}).values():
            for data in by_group.values():
                if not data.dead_time:
                    data = _died(data, max(now_ms - _AWAY_AT_START_MS, data.born_time))
                self._put(data)
        self.clean()

    async def close(self) -> None:
        """Write changes that are not written yet."""
        await self._file.close()

    def get(self, topic: str, group: str) -> FilterData | None:
        """Return the filter of a group, dead or alive, or None."""
        return self._table.get(topic, {}).get(group)

    def subscribed(self, data: ConsumerData) -> None:
        """Register the subscriptions of a consumer's heartbeat.

        Filters of topics to which its group is not subscribed any more become dead.
        """
        group, wanted = data.group_name, data.subscription_data_set
        for subscription in wanted:
            self._register(group, subscription, is_parsed=False)
        topics = {subscription.topic for subscription in wanted}
        for topic in self._topics_of.get(group, ()):
            if topic not in topics:
                self._bury(self._table[topic][group])

    def register(self, group: str, subscription: SubscriptionData) -> None:
        """Register the filter of a group that pulls although its heartbeat registered none.

        The caller has parsed the expression.
        """
        self._register(group, subscription, is_parsed=True)

    def group_gone(self, group: str) -> None:
        """Mark the filters of a group dead, because its last member left."""
        for topic in self._topics_of.get(group, ()):
            self._bury(self._table[topic][group])

    def clean(self) -> None:
        """Drop the filters that have been dead for filterDataCleanTimeSpan."""
        limit_ms = self._clock.wall_ms() - self._config.filter_data_clean_time_span
        for topic, by_group in list(self._table.items()):
            for group in [name for name, data in by_group.items() if data.dead]:
                if by_group[group].dead_time <= limit_ms:
                    log.info("consumer filter expired topic=%s group=%s", topic, group)
                    self._drop(topic, group)

    async def clean_forever(self) -> None:
        """Call :meth:`clean` every CLEAN_INTERVAL_MS."""
        while True:
            await self._clock.sleep_ms(CLEAN_INTERVAL_MS)
            self.clean()

    # ------------------------------------------------------------------------------------ internals

    def _register(self, group: str, wanted: SubscriptionData, *, is_parsed: bool) -> None:
        """Register or replace the filter of a subscription, unless it is by tags or outdated."""
        kind = wanted.expression_type or TAG
        if kind == TAG or not wanted.sub_string:
            return
        known = self.get(wanted.topic, group)
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
            return  # the members of the group disagree: the first filter of a version counts
        if not is_parsed and not self._is_readable(group, wanted):
            if known is not None:
                self._drop(wanted.topic, group)
            return
        if not self._has_room(group, wanted, known):
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

    def _is_readable(self, group: str, wanted: SubscriptionData) -> bool:
        """Return whether an expression can be parsed; False also if the limits of parsing are
        reached."""
        expression = wanted.sub_string
        if expression in self._readable:
            return True
        now_ms, texts = self._clock.monotonic_ms(), self._new_texts
        if not (texts.take_on_loop(expression, now_ms) and texts.take(expression, now_ms)):
            return False  # the group's first pull parses and registers it
        try:
            parse(expression)
        except BadFilter as error:
            self._warn("consumer filter unreadable group=%s error=%s", group, error)
            return False
        if len(expression) <= _MAX_READABLE_CHARS:
            if len(self._readable) >= _MAX_READABLE:
                self._readable.clear()
            self._readable[expression] = None
        return True

    def _warn(self, text: str, *values: object) -> None:
        """Log a warning, at most one per second, because every heartbeat repeats the problem."""
        now_ms = self._clock.monotonic_ms()
        if now_ms >= self._quiet_until_ms:
            self._quiet_until_ms = now_ms + _QUIET_MS
            log.warning(text, *values)

    def _has_room(self, group: str, wanted: SubscriptionData, known: FilterData | None) -> bool:
        """Return whether a filter may be kept; drop all dead ones if there is no room."""
        if known is not None:
            chars = len(wanted.sub_string) - len(known.expression)
            return self._chars + chars <= MAX_KEPT_CHARS
        topic, chars = wanted.topic, _chars(wanted.topic, group, wanted.sub_string)
        if not self._fits(topic, chars) and self._dead:
            self._drop_dead()
        fits = self._fits(topic, chars)
        if not fits:
            self._warn(
                "consumer filter table full count=%d chars=%d group=%s topic=%s: further groups "
                "must send their subscriptions with each pull", self._count, self._chars, group,
                topic[:_MAX_LOGGED_CHARS],
            )  # fmt: skip
        return fits

    def _fits(self, topic: str, chars: int) -> bool:
        return (
            self._count < MAX_FILTERS
            and self._chars + chars <= MAX_KEPT_CHARS
            and len(self._table.get(topic, ())) < MAX_FILTERS_OF_TOPIC
        )

    def _drop_dead(self) -> None:
        for topic, by_group in list(self._table.items()):
            for group in [name for name, data in by_group.items() if data.dead]:
                self._drop(topic, group)

    def _bury(self, data: FilterData) -> None:
        """Mark a filter dead."""
        if not data.dead:
            self._put(_died(data, self._clock.wall_ms()))

    def _changed(self) -> None:
        self._file.touch()
        for call in self.on_change:
            call()

    def _put(self, data: FilterData) -> None:
        topic, group = data.topic, data.consumer_group
        known = self.get(topic, group)
        if known is None:
            self._count += 1
        else:
            self._chars -= _chars(topic, group, known.expression)
            self._dead -= known.dead
        self._dead += data.dead
        self._chars += _chars(topic, group, data.expression)
        if self._bit_maps is not None and (known is None or known.expression != data.expression):
            bloom = data.bloom_filter_data
            positions = () if bloom is None else bloom.bit_pos
            self._bit_maps.put(topic, group, data.expression, positions)
        self._table.setdefault(topic, {})[group] = data
        self._topics_of.setdefault(group, {})[topic] = None
        text = b"\n\t\t\t\t%b:%b" % (msgspec.json.encode(group), pretty(_sorted_fields(data), 4))
        self._texts.setdefault(topic, {})[group] = text
        self._changed()

    def _drop(self, topic: str, group: str) -> None:
        self._count -= 1
        data = self._table[topic].pop(group)
        self._chars -= _chars(topic, group, data.expression)
        self._dead -= data.dead
        if self._bit_maps is not None:
            self._bit_maps.drop(topic, group)
        del self._texts[topic][group], self._topics_of[group][topic]
        for table, key in ((self._table, topic), (self._texts, topic), (self._topics_of, group)):
            if not table[key]:
                del table[key]
        self._changed()

    def _encode(self) -> Iterator[bytes]:
        return _file_of([(topic, dict(texts)) for topic, texts in self._texts.items()])


def _chars(topic: str, group: str, expression: str) -> int:
    return len(topic) + len(group) + len(expression)


def _file_of(found: list[tuple[str, dict[str, bytes]]]) -> Iterator[bytes]:
    """Yield the file in pieces, from the texts of filters by topic and group."""
    yield b'{\n\t"filterDataByTopic":{'
    for number, (topic, texts) in enumerate(found):
        name = msgspec.json.encode(topic)
        yield b'%b\n\t\t%b:{\n\t\t\t"groupFilterData":{' % (b"," if number else b"", name)
        yield b",".join([text for _, text in sorted(texts.items())])
        yield b'\n\t\t\t},\n\t\t\t"topic":%b\n\t\t}' % name
    yield b"\n\t}\n}" if found else b"}\n}"


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
