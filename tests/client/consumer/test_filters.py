"""Tags or SQL92: what is told to brokers, and what is looked at again here."""

from __future__ import annotations

import pytest

from cometmq.client.consumer.options import Sql, parse_filter
from tests.client.consumer.test_options import options


def test_tags_are_a_text_and_sql_says_so() -> None:
    assert parse_filter("a || b").kind == "TAG"
    assert parse_filter("a || b").tags == {"a", "b"}
    wanted = Sql("price > 5 AND region IN ('AD', 'FR')")
    assert parse_filter(wanted) is wanted
    assert wanted.kind == "SQL92"
    assert not wanted.tags
    assert not wanted.codes
    assert wanted.matches_all
    assert wanted.accepts("anything")


def test_sql_that_cannot_be_read_is_refused_where_it_is_written() -> None:
    with pytest.raises(ValueError, match="character 7"):
        Sql("price >")


def test_heartbeats_carry_the_expression() -> None:
    described = options({"t": Sql("a = 1"), "u": "x"}).describe().subscription_data_set
    found = {each.topic: (each.expression_type, each.sub_string) for each in described}
    assert found == {
        "t": ("SQL92", "a = 1"),
        "u": ("TAG", "x"),
        "%RETRY%g": ("TAG", "*"),
    }
