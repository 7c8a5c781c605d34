"""Batches hold every message once, in order, within the limits, and are well filled."""

from __future__ import annotations

from hypothesis import given
from hypothesis import strategies as st

from cometmq.client.config import ClientConfig
from cometmq.client.limits import plain_batch_count, plan_batches
from cometmq.client.sendrequests import Packer
from cometmq.message.model import Message
from cometmq.message.names import Namespace

PACKER = Packer(ClientConfig(("a:1",)), Namespace())

MESSAGES = st.lists(
    st.builds(
        Message,
        topic=st.sampled_from(["t", "u", "%RETRY%g"]),
        body=st.binary(max_size=300),
        tag=st.sampled_from(["", "k", "l"]),
        delay_level=st.sampled_from([0, 0, 0, 1]),
        wait_store=st.booleans(),
        born_ms=st.sampled_from([0, 0, 1]),
        properties=st.dictionaries(st.text("abcü", min_size=1), st.text("xyzü", min_size=1)),
    ),
    max_size=40,
)


@given(MESSAGES, st.integers(400, 2000))
def test_batches_hold_every_message_once_within_the_limits(
    messages: list[Message], limit: int
) -> None:
    plan = plan_batches(messages, lambda message: message.tag, limit)
    assert sorted(at for positions, _ in plan for at in positions) == list(range(len(messages)))
    last: dict[tuple[str, str | None], int] = {}
    for positions, key in plan:
        part = [messages[at] for at in positions]
        assert {message.tag for message in part} == {key}
        assert len({(message.topic, message.wait_store, message.born_ms) for message in part}) == 1
        if len(part) > 1:
            packed = PACKER.batch(part, ["K" * 56] * len(part), 0)
            assert len(packed.body) <= limit
        group = part[0].topic, key
        assert positions == sorted(positions)
        assert last.get(group, -1) < positions[0]
        last[group] = positions[-1]


def test_batches_are_filled() -> None:
    messages = [
        Message("t", b"x" * 128, tag="update", keys=(f"row-{at}",), properties={"table": "regions"})
        for at in range(2000)
    ]
    plan = plan_batches(messages, lambda _: None, 1 << 18)
    sizes = [
        len(PACKER.batch([messages[at] for at in part], ["K" * 32] * len(part), 0).body)
        for part, _ in plan
    ]
    assert max(sizes) <= 1 << 18
    assert min(sizes[:-1]) > 0.75 * (1 << 18)


@given(st.lists(st.binary(max_size=300), min_size=1, max_size=20), st.integers(1, 3000))
def test_plain_batches_keep_the_limit(bodies: list[bytes], limit: int) -> None:
    count = plain_batch_count(bodies, limit)
    for at in range(0, len(bodies), count):
        part = bodies[at : at + count]
        packed = PACKER.batch([Message("t", body) for body in part], ["K" * 56] * len(part), 0)
        assert len(part) == 1 or len(packed.body) <= limit
