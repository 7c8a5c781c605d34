"""Reading option texts: names in any case, values checked, errors that name the option."""

from collections.abc import Callable

import pytest

from cometmq.spark import options as o

KNOWN = ("startingOffsets", "topic")


def test_names_are_known_in_any_case_and_by_alias() -> None:
    found = o.by_name({"STARTINGOFFSETS": "a", "subject": "b"}, KNOWN, {"subject": "topic"})
    assert found == {"startingOffsets": "a", "topic": "b"}


def test_an_unknown_name_says_what_is_near() -> None:
    with pytest.raises(o.BadOption, match="did you mean 'topic'") as caught:
        o.by_name({"topics": "a"}, KNOWN)
    assert caught.value.option == "topics"
    with pytest.raises(o.BadOption, match="known are startingOffsets, topic"):
        o.by_name({"xyz": "1"}, KNOWN)


def test_what_spark_adds_for_itself_is_no_option() -> None:
    given = {"queryname": "q", "checkpointLocation": "/c", "path": "p", "paths": "[]", "topic": "a"}
    assert o.by_name(given, KNOWN) == {"topic": "a"}


def test_a_name_and_its_alias_are_one_option() -> None:
    with pytest.raises(o.BadOption, match="'subject': is already given as Topic"):
        o.by_name({"Topic": "a", "subject": "b"}, KNOWN, {"subject": "topic"})


def test_values_are_stripped_and_defaults_given() -> None:
    assert o.get({"n": " 5 "}, "n", o.positive, 1) == 5
    assert o.get({}, "n", o.positive, 1) == 1
    assert o.required({"n": "x"}, "n", o.some_text) == "x"
    with pytest.raises(o.BadOption, match="'n': is required"):
        o.required({}, "n", o.some_text)


def test_what_excludes_one_another_is_refused() -> None:
    assert o.only_one({"b": "1"}, ("a", "b")) == "b"
    assert o.only_one({}, ("a", "b")) is None
    with pytest.raises(o.BadOption, match="'b': cannot be given together with a"):
        o.only_one({"a": "1", "b": "2"}, ("a", "b"))


@pytest.mark.parametrize(
    ("read", "text", "expected"),
    [
        (o.names, "x, y,x,", ("x", "y")),
        (o.positive, "12", 12),
        (o.duration_ms, "500ms", 500),
        (o.duration_ms, "30s", 30_000),
        (o.duration_ms, "15m", 900_000),
        (o.duration_ms, "2h", 7_200_000),
        (o.boolean, "True", True),
        (o.boolean, "false", False),
        (o.one_of("error", "latest"), "LATEST", "latest"),
    ],
)
def test_what_can_be_read(read: Callable[[str], object], text: str, expected: object) -> None:
    assert read(text) == expected


@pytest.mark.parametrize(
    ("read", "text"),
    [
        (o.some_text, ""),
        (o.names, " , "),
        (o.positive, "0"),
        (o.positive, "-1"),
        (o.positive, "²"),
        (o.positive, "many"),
        (o.duration_ms, "15"),
        (o.duration_ms, "h"),
        (o.duration_ms, "5 d"),
        (o.boolean, "no"),
        (o.one_of("error", "latest"), "first"),
    ],
)
def test_what_cannot_be_read(read: Callable[[str], object], text: str) -> None:
    with pytest.raises(ValueError, match=r"'|empty|nothing"):
        read(text)
