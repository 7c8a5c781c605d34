"""Text settings, in RocketMQ's spelling and in Python's."""

import enum
from dataclasses import dataclass

import pytest
from hypothesis import given
from hypothesis import strategies as st

from cometmq.core import settings
from cometmq.core.errors import SettingsError
from tests.pace import processor_time_within


class Flush(enum.Enum):
    """Two ways to flush."""

    SYNC_FLUSH = 1
    ASYNC_FLUSH = 2


@dataclass(frozen=True, slots=True)
class Store:
    """One of each kind of field."""

    broker_ip1: str | None = None
    mapped_file_size_commit_log: int = 1 << 30
    disk_ratio: float = 0.75
    auto_create_topic_enable: bool = True
    flush_disk_type: Flush = Flush.ASYNC_FLUSH
    max_bytes: int | None = None
    name: str = "a"


@dataclass(frozen=True, slots=True)
class Net:
    """Another class of settings."""

    listen_port: int = 10911


text_lines = st.text(st.characters(codec="utf-8", exclude_categories=["C", "Z"]), max_size=10)


@given(
    st.builds(
        Store,
        broker_ip1=st.none() | text_lines.filter(bool),
        mapped_file_size_commit_log=st.integers(-(2**63), 2**63 - 1),
        disk_ratio=st.floats(-1e18, 1e18),
        auto_create_topic_enable=st.booleans(),
        flush_disk_type=st.sampled_from(Flush),
        max_bytes=st.none() | st.integers(-(2**63), 2**63 - 1),
        name=text_lines,
    )
)
def test_settings_survive_their_property_file(store: Store) -> None:
    text = settings.format_properties(settings.to_properties(store))
    values = settings.parse_properties(text)
    assert settings.build(Store, values) == (store, set(values))


@pytest.mark.parametrize(
    "key",
    [
        *("mappedFileSizeCommitLog", "mapped_file_size_commit_log", "mapped-file-size-commit-log"),
        "MAPPEDFILESIZECOMMITLOG",
    ],
)
def test_every_spelling_finds_its_field(key: str) -> None:
    store, used = settings.build(Store, {key: "5", "unknown": "x"})
    assert store.mapped_file_size_commit_log == 5
    assert used == {key}


def test_names_on_the_wire_are_upstreams() -> None:
    assert set(settings.to_properties(Store(broker_ip1="h"))) == {
        *("brokerIP1", "mappedFileSizeCommitLog", "diskRatio", "autoCreateTopicEnable"),
        *("flushDiskType", "maxBytes", "name"),
    }
    shown = settings.to_properties(Store())
    assert (shown["autoCreateTopicEnable"], shown["flushDiskType"]) == ("true", "ASYNC_FLUSH")
    assert (shown["brokerIP1"], shown["maxBytes"]) == ("", "")


def test_fields_that_are_not_named_keep_their_base() -> None:
    base = Store(name="kept", max_bytes=3)
    changed, _ = settings.build(Store, {"diskRatio": "0.5"}, base)
    assert changed == Store(name="kept", max_bytes=3, disk_ratio=0.5)


@pytest.mark.parametrize(
    ("text", "value"),
    [(word, True) for word in ("true", "TRUE", "yes", "on", "1")]
    + [(word, False) for word in ("false", "No", "off", "0")],
)
def test_booleans(text: str, value: bool) -> None:
    assert (
        settings.build(Store, {"autoCreateTopicEnable": text})[0].auto_create_topic_enable is value
    )


@pytest.mark.parametrize(
    ("key", "text", "problem"),
    [
        ("autoCreateTopicEnable", "maybe", "'maybe' is neither true nor false"),
        ("mappedFileSizeCommitLog", "1G", "'1G' is not a number"),
        ("diskRatio", "much", "'much' is not a number"),
        ("maxBytes", "x", "'x' is not a number"),
        ("flushDiskType", "SOMETIMES", "'SOMETIMES' is none of SYNC_FLUSH, ASYNC_FLUSH"),
    ],
)
def test_a_value_that_cannot_be_read_is_refused(key: str, text: str, problem: str) -> None:
    with pytest.raises(SettingsError) as info:
        settings.build(Store, {key: text})
    assert info.value.key == key
    assert info.value.problem == problem


def test_enums_are_read_in_any_case() -> None:
    assert (
        settings.build(Store, {"flushDiskType": "sync_flush"})[0].flush_disk_type
        is Flush.SYNC_FLUSH
    )


def test_an_unknown_key_is_refused_with_the_nearest_name() -> None:
    values = {"listenPort": "1", "listnPort": "2"}
    _, used = settings.build(Net, values)
    with pytest.raises(SettingsError, match="did you mean 'listenPort'"):
        settings.reject_unknown(values, used, (Store, Net))
    with pytest.raises(SettingsError, match="no such setting; see docs"):
        settings.reject_unknown({"zzz": "1"}, (), (Net,))
    settings.reject_unknown({"listenPort": "1"}, {"listenPort"}, (Store, Net))


def test_a_property_file() -> None:
    text = "# comment\n! comment\n\nbrokerName = broker-a\nurl: http://h:1\n a=b=c \nempty=\n"
    assert settings.parse_properties(text) == {
        "brokerName": "broker-a",
        "url": "http://h:1",
        "a": "b=c",
        "empty": "",
    }


@pytest.mark.parametrize("line", ["brokerName", "=x", ":x"])
def test_a_line_that_is_no_property_is_refused(line: str) -> None:
    with pytest.raises(SettingsError, match="line 2 is not of the form key=value"):
        settings.parse_properties(f"a=b\n{line}\n")


def test_properties_are_written_sorted() -> None:
    assert settings.format_properties({"b": "2", "a": "1"}) == "a=1\nb=2\n"


@pytest.mark.parametrize("digits", [21, 5_000, 60_000, 1_000_000])
def test_a_number_of_any_length_is_refused_in_a_line(digits: int) -> None:
    for text in ("9" * digits, "-" + "9" * digits, "x" * digits):
        with pytest.raises(SettingsError) as caught:
            settings.build(Store, {"mappedFileSizeCommitLog": text})
        assert len(str(caught.value)) < 300


def test_a_long_unknown_key_is_refused_in_a_line() -> None:
    with processor_time_within(0.5), pytest.raises(SettingsError) as caught:
        settings.reject_unknown({"x" * 1_000_000: "1"}, (), (Store,))
    assert len(str(caught.value)) < 300


@pytest.mark.parametrize(
    ("key", "near"),
    [
        ("listnPort", ["listenPort"]),
        ("LISTENPROT", ["listenPort"]),
        ("listenPrt", ["listenPort"]),
        ("portListen", ["listenPort"]),
        ("log_commit_file_size_mapped", ["mappedFileSizeCommitLog"]),
        ("mapedFileSizeCommitLog", ["mappedFileSizeCommitLog"]),
        ("fileSizeCommitLog", ["mappedFileSizeCommitLog"]),
        ("flushType", ["flushDiskType"]),
        ("brokerIp", ["brokerIP1"]),
        ("zzz", []),
        ("x" * 81, []),
    ],
)
def test_an_unknown_key_gets_suggestions_worth_having(key: str, near: list[str]) -> None:
    known = [*settings.known_keys(Store), *settings.known_keys(Net)]
    assert settings.nearest(key, known) == near


def test_two_keys_that_are_equally_near_are_both_named() -> None:
    assert settings.nearest("brokerIP3", ["brokerIP2", "brokerIP1", "brokerId"]) == [
        "brokerIP1",
        "brokerIP2",
    ]


def test_many_unknown_keys_are_refused_in_bounded_time() -> None:
    known = [f"someSettingOfTheBrokerNumber{number}" for number in range(250)]
    keys = [f"someSeting0fTheBrokerNumbr{number}x" for number in range(2_000)]
    with processor_time_within(5):
        found = settings.unknown_keys(keys, known)
    assert len(found) == 2_000
    assert "did you mean" in found[0].problem


@dataclass(frozen=True, slots=True)
class Limits:
    """Declared settings."""

    percent: int = settings.setting(5, "a share", unit="percent", least=1, most=99, live=True)
    pause_ms: int = settings.setting(0, "a pause", unit="ms", least=0)
    depth: int = settings.setting(3, "a depth", most=7)

    def __post_init__(self) -> None:
        settings.check_ranges(self)


@pytest.mark.parametrize(
    ("values", "problem"),
    [
        ({"percent": "0"}, "it must be from 1 to 99 percent, not 0"),
        ({"percent": "100"}, "it must be from 1 to 99 percent, not 100"),
        ({"pauseMs": "-1"}, "it must be at least 0 ms, not -1"),
        ({"depth": "8"}, "it must be at most 7, not 8"),
    ],
)
def test_a_declared_range_is_held(values: dict[str, str], problem: str) -> None:
    with pytest.raises(SettingsError) as caught:
        settings.build(Limits, values)
    assert caught.value.problem == problem
    ((key, value),) = values.items()
    with pytest.raises(SettingsError):
        Limits(**{key.replace("Ms", "_ms"): int(value)})


def test_all_unusable_values_are_reported() -> None:
    with pytest.raises(SettingsError) as caught:
        settings.build(Limits, {"percent": "0", "depth": "x", "pause_ms": "3"})
    assert [error.key for error in (caught.value, *caught.value.more)] == ["percent", "depth"]


def test_live_fields_are_declared() -> None:
    assert settings.live_fields(Limits) == {"percent"}
    assert settings.declarations(Limits)["pause_ms"].range_text() == "at least 0 ms"


def test_an_error_says_where_its_setting_came_from() -> None:
    error = SettingsError("k", "bad", where="b.conf:3", more=[SettingsError("l", "worse")])
    assert str(error).splitlines() == ["b.conf:3: setting 'k': bad", "setting 'l': worse"]
