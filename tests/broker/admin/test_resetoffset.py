"""Setting the progress of groups whose consumers run."""

from pathlib import Path

import pytest

from cometmq.broker.admin import offsets as progress
from cometmq.core.clock import VirtualClock
from cometmq.core.errors import BadRequest
from cometmq.protocol.bodies import QueueKey, TopicConfig, read_offsets
from cometmq.protocol.codes import RequestCode as Code
from cometmq.protocol.headers import ResetOffset
from tests.broker.world import Parts, open_parts, recorded, sent_to


def queues(*offsets: int) -> dict[QueueKey, int]:
    """Offsets of the queues 0, 1, ... of topic "t"."""
    return {QueueKey("t", "broker-a", queue_id): at for queue_id, at in enumerate(offsets)}


async def fill(parts: Parts, clock: VirtualClock) -> int:
    """Four messages in queue 0 and one in queue 1, a second apart; gives the time of the third."""
    parts.topics.put(TopicConfig("t", 3, 3))
    times = []
    for queue_id in (0, 0, 0, 0, 1):
        clock.advance(1_000)
        await parts.put("t", queue_id=queue_id)
        times.append(clock.wall_ms())
    for queue_id, offset in enumerate((3, 1, 0)):
        parts.offsets.commit("g", "t", queue_id, offset)
    return times[2]


async def reset(parts: Parts, header: ResetOffset) -> dict[QueueKey, int]:
    return read_offsets((await parts.ask(Code.INVOKE_BROKER_TO_RESET_OFFSET, header)).body)


async def test_every_member_is_told_and_the_broker_notes_it(tmp_path: Path) -> None:
    clock = VirtualClock()
    async with open_parts(tmp_path, clock=clock) as parts:
        third_ms = await fill(parts, clock)
        members = [await parts.join("g", "t", client_id=name) for name in "ab"]
        stranger = await parts.join("other", "t")
        wanted = queues(2, 0, 0)
        assert await reset(parts, ResetOffset("t", "g", third_ms, "true")) == wanted
        assert parts.offsets.queues_of("g", "t") == {0: 2, 1: 0, 2: 0}
        for member in members:
            assert sent_to(member)[-1] == (220, ResetOffset("t", "g", third_ms, "true"))
            assert recorded(member).bodies[-1].startswith(b'{"offsetTable":{{"brokerName":')
            assert read_offsets(recorded(member).bodies[-1]) == wanted
        assert 220 not in [code for code, _ in sent_to(stranger)]


async def test_the_cpp_client_gets_a_list(tmp_path: Path) -> None:
    clock = VirtualClock()
    async with open_parts(tmp_path, clock=clock) as parts:
        await fill(parts, clock)
        peer = await parts.join("g", "t", language="CPP")
        await reset(parts, ResetOffset("t", "g", -1, "true"))
        body = recorded(peer).bodies[-1]
        assert body.startswith(
            b'{"offsetTable":[{"brokerName":"broker-a","offset":4,"queueId":0,"topic":"t"},'
        )
        assert read_offsets(body) == queues(4, 1, 0)


async def test_without_force_nothing_is_skipped(tmp_path: Path) -> None:
    clock = VirtualClock()
    async with open_parts(tmp_path, clock=clock) as parts:
        third_ms = await fill(parts, clock)
        await parts.join("g", "t")
        assert await reset(parts, ResetOffset("t", "g", -1, "false")) == queues(3, 1, 0)
        assert await reset(parts, ResetOffset("t", "g", third_ms, "false")) == queues(2, 0, 0)
        assert await reset(parts, ResetOffset("t", "g", -1, "true")) == queues(4, 1, 0)


async def test_a_queue_that_was_never_read_is_set_too(tmp_path: Path) -> None:
    clock = VirtualClock()
    async with open_parts(tmp_path, clock=clock) as parts:
        await fill(parts, clock)
        await parts.join("new", "t")
        assert await reset(parts, ResetOffset("t", "new", -1, "false")) == queues(4, 1, 0)


async def test_one_queue_and_an_offset_in_it(tmp_path: Path) -> None:
    clock = VirtualClock()
    async with open_parts(tmp_path, clock=clock) as parts:
        await fill(parts, clock)
        await parts.join("g", "t")
        key = QueueKey("t", "broker-a", 0)
        for asked, given in ((1, 1), (99, 4)):
            header = ResetOffset("t", "g", -1, "true", 0, asked)
            assert await reset(parts, header) == {key: given}
        assert await reset(parts, ResetOffset("t", "g", 0, "true", 0)) == {key: 0}
        assert parts.offsets.queues_of("g", "t") == {0: 0, 1: 1, 2: 0}
        with pytest.raises(BadRequest, match="has 3 queues"):
            await reset(parts, ResetOffset("t", "g", -1, "true", 3))


async def test_broadcasting_members_keep_their_own_offsets(tmp_path: Path) -> None:
    clock = VirtualClock()
    async with open_parts(tmp_path, clock=clock) as parts:
        await fill(parts, clock)
        peer = await parts.join("b", "t", model="BROADCASTING")
        assert await reset(parts, ResetOffset("t", "b", -1, "true")) == queues(4, 1, 0)
        assert sent_to(peer)[-1][0] == 220
        assert parts.offsets.topics_of("b") == []


async def test_nobody_online_and_no_topic_are_refused(tmp_path: Path) -> None:
    clock = VirtualClock()
    async with open_parts(tmp_path, clock=clock) as parts:
        await fill(parts, clock)
        with pytest.raises(BadRequest, match="Consumer not online") as caught:
            await reset(parts, ResetOffset("t", "g", -1, "true"))
        assert caught.value.code == 206
        assert parts.offsets.query("g", "t", 0) == 3
        with pytest.raises(BadRequest, match="no topic in this broker") as caught:
            await reset(parts, ResetOffset("no", "g", -1, "true"))
        assert caught.value.code == 1


async def test_a_reset_waits_for_members_that_do_not_read(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(progress, "MAX_UNREAD_BYTES", 10)
    monkeypatch.setattr(progress, "NOTIFY_TIMEOUT_MS", 200)
    async with open_parts(tmp_path) as parts:
        parts.topics.put(TopicConfig("t", 1, 1))
        members = [await parts.join("g", "t", client_id=name) for name in "abc"]

        def told() -> list[bool]:
            return [220 in [code for code, _ in sent_to(member)] for member in members]

        recorded(members[1]).buffered_bytes = 101
        with pytest.raises(BadRequest, match="only 2 of its 3 consumers were told"):
            await reset(parts, ResetOffset("t", "g", -1, "true"))
        assert told() == [True, True, False]
        recorded(members[1]).buffered_bytes = 0
        await reset(parts, ResetOffset("t", "g", -1, "true"))
        assert told() == [True, True, True]
