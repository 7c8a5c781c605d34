"""The table of groups and members, against a model, and whether members agree."""

from __future__ import annotations

from hypothesis import given
from hypothesis import strategies as st

from cometmq.broker.consumers.members import EXPIRY_MS, Member, MemberTable, wants_of
from cometmq.protocol.bodies import ConsumerData, SubscriptionData
from tests.broker.consumers.test_members import consumer


@given(
    st.lists(
        st.tuples(
            st.sampled_from(["consume", "produce", "leave", "close", "expire"]),
            st.integers(0, 3),
            st.sampled_from("gh"),
            st.integers(0, 50_000),
        ),
        max_size=60,
    )
)
def test_the_table_holds_who_was_heard_of_lately(
    steps: list[tuple[str, int, str, int]],
) -> None:
    table: MemberTable[int] = MemberTable()
    model: dict[tuple[str, int, bool], int] = {}
    now_ms = 0
    for act, channel, group, pause_ms in steps:
        now_ms += pause_ms
        member = Member(f"c{channel}", "JAVA", 1, now_ms)
        if act == "consume":
            table.add_consumer(channel, consumer(group, "t"), member)
            model[group, channel, True] = now_ms
        elif act == "produce":
            table.add_producer(channel, group, member)
            model[group, channel, False] = now_ms
        elif act == "leave":
            known = model.pop((group, channel, True), None)
            assert table.remove_consumer(channel, group) == (known is not None)
        elif act == "close":
            table.remove_channel(channel)
            model = {key: seen for key, seen in model.items() if key[1] != channel}
        else:
            table.expire(now_ms)
            model = {key: seen for key, seen in model.items() if now_ms - seen < EXPIRY_MS}
    found = {
        (name, channel, True)
        for name, group in table.consumers.items()
        for channel in group.members
    }
    found |= {
        (name, channel, False) for name, members in table.producers.items() for channel in members
    }
    assert found == set(model)
    assert table.channels() == {key[1] for key in model}


def wanting(expression: str, kind: str | None = "TAG", topic: str = "t") -> ConsumerData:
    tags = () if expression == "*" else tuple(part.strip() for part in expression.split("||"))
    return ConsumerData(
        "g",
        subscription_data_set=(
            SubscriptionData(topic, expression, 1, tags if kind != "SQL92" else (), (), kind),
            SubscriptionData(f"%RETRY%{expression}"),
        ),
    )


def test_members_agree_however_they_write_their_tags() -> None:
    assert wants_of(wanting("a || b")) == wants_of(wanting("b||a", None))
    assert wants_of(wanting("a")) != wants_of(wanting("b"))
    assert wants_of(wanting("a")) != wants_of(wanting("a", "SQL92"))
    assert wants_of(wanting("a", "SQL92")) != wants_of(wanting("b", "SQL92"))
    assert wants_of(wanting("a")) != wants_of(wanting("a", topic="u"))


def test_what_members_want_is_counted() -> None:
    table: MemberTable[int] = MemberTable()
    member = Member("c", "JAVA", 1, 0)
    for channel, expression in ((1, "a"), (2, "a"), (3, "b")):
        table.add_consumer(channel, wanting(expression), member)
    group = table.consumers["g"]
    assert sorted(group.variants.values()) == [1, 2]
    table.add_consumer(3, wanting("a"), member)
    table.add_consumer(3, wanting("a"), member)
    assert list(group.variants.values()) == [3]
    table.add_consumer(1, wanting("b"), member)
    table.remove_channel(1)
    assert list(group.variants.values()) == [2]


def test_a_subscription_keeps_the_place_where_it_began() -> None:
    table: MemberTable[int] = MemberTable()
    for at, topics in ((5, ["t"]), (7, ["t", "u"]), (9, ["u"]), (11, ["t", "u"])):
        table.add_consumer(1, consumer("g", *topics), Member("c", "JAVA", 1, 0, at))
    assert table.consumers["g"].since == {"t": 11, "u": 7}
