"""Names of topics and groups."""

import pytest

from cometmq.message import names


@pytest.mark.parametrize("name", ["t", "%RETRY%g", "a|b", "A-1_z"])
def test_legal_characters(name: str) -> None:
    assert names.has_legal_characters(name)


@pytest.mark.parametrize("name", ["", "a b", "t\n", "städte", "a.b", "a:b"])
def test_illegal_characters(name: str) -> None:
    assert not names.has_legal_characters(name)


def test_system_topics() -> None:
    assert names.is_system_topic("SCHEDULE_TOPIC_XXXX")
    assert names.is_system_topic("TBW102")
    assert names.is_system_topic("rmq_sys_anything")
    assert not names.is_system_topic("regions")


def test_prefixes() -> None:
    assert names.split_prefix("%RETRY%g") == ("%RETRY%", "g")
    assert names.split_prefix("%DLQ%ns%g") == ("%DLQ%", "ns%g")
    assert names.split_prefix("ns%t") == ("", "ns%t")


def test_a_retry_topic_of_the_longest_group_fits() -> None:
    assert names.MAX_GROUP_CHARACTERS + len("%RETRY%") == names.MAX_NAME_CHARACTERS
