"""Tag hashes and expressions."""

import pytest

from cometmq.filter import tags
from cometmq.speedups import java_hash

pytestmark = pytest.mark.core


def test_no_tag_has_code_zero() -> None:
    assert tags.tag_code(None) == tags.tag_code("") == 0


def test_remembered_codes_are_bounded(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(tags, "_CACHE_LIMIT", 3)
    monkeypatch.setattr(tags, "_codes", {})
    assert [tags.tag_code(f"t{number}") for number in range(9)] == [
        java_hash(f"t{number}") for number in range(9)
    ]
    assert len(tags._codes) <= 3


@pytest.mark.parametrize("expression", [None, "", " ", "*", " * "])
def test_everything_matches(expression: str | None) -> None:
    found = tags.parse(expression)
    assert found.matches_all
    assert found.accepts("x")
    assert found.accepts_code(5)


def test_several_tags() -> None:
    found = tags.parse(" insert || update||")
    assert found.tags == {"insert", "update"}
    assert found.accepts("insert")
    assert not found.accepts("delete")
    assert found.accepts_code(tags.tag_code("update"))
    assert not found.accepts_code(tags.tag_code("delete"))


def test_equal_hashes_are_told_apart_by_text() -> None:
    found = tags.parse("Aa")
    assert found.accepts_code(tags.tag_code("BB"))
    assert not found.accepts("BB")


def test_a_text_of_many_separators_is_refused_before_it_is_split() -> None:
    assert tags.parse("a||" * tags.MAX_TAGS).tags == {"a"}
    with pytest.raises(ValueError, match=f"the limit is {tags.MAX_TAGS}"):
        tags.parse("a||" * (2 * tags.MAX_TAGS))


def test_an_expression_has_so_many_tags() -> None:
    several = [f"t{number}" for number in range(tags.MAX_TAGS)]
    assert len(tags.parse("||".join(several)).codes) == tags.MAX_TAGS
    with pytest.raises(ValueError, match=f"names {tags.MAX_TAGS + 1} tags, the limit is") as caught:
        tags.parse("||".join([*several, "more"]))
    assert len(str(caught.value)) < 200


def test_codes_of_long_tags_are_not_remembered(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(tags, "_codes", {})
    assert tags.tag_code("x" * 30_000) == java_hash("x" * 30_000)
    assert tags.tag_code("x" * 64) == java_hash("x" * 64)
    assert list(tags._codes) == ["x" * 64]


def test_a_broker_takes_what_a_user_of_this_project_may_not_write() -> None:
    assert tags.parse("a|b").tags == {"a|b"}
    assert tags.parse_exactly(" a || b ") == tags.parse("a || b")
    assert tags.parse_exactly("a||b||").tags == {"a", "b"}
    assert tags.parse_exactly(None).matches_all
    assert tags.parse_exactly("two words || b").tags == {"two words", "b"}
    for expression in ("a|b", "a,b", "a || *", "*|a"):
        with pytest.raises(ValueError, match=r"Write a \|\| b"):
            tags.parse_exactly(expression)


def test_expression_without_a_tag() -> None:
    with pytest.raises(ValueError, match="names no tag"):
        tags.parse(" || ")
