"""RECALL_MESSAGE, and all that a send says about a time of its own, on a whole broker."""

import asyncio
from pathlib import Path

import msgspec
import pytest

from cometmq.broker.acknowledgement import OutgoingRecord, PutResult
from cometmq.core.clock import SystemClock
from cometmq.message import properties as props
from cometmq.message.ids import RecallHandle, decode_recall
from cometmq.message.record import Record
from cometmq.protocol.codes import RequestCode, ResponseCode
from tests.broker.serving import BATCH, BrokerClient, running_broker

CLOCK = SystemClock()


async def delivered(client: BrokerClient, count: int = 1, **changes: str) -> list[Record]:
    """Wait until a queue has so many messages."""
    async with asyncio.timeout(60):
        while True:
            _, records = await client.pull(0, **changes)
            if len(records) >= count:
                return records
            await asyncio.sleep(0.01)


async def recall(client: BrokerClient, handle: str, topic: str = "t") -> tuple[int, str]:
    head, _ = await client.ask(
        RequestCode.RECALL_MESSAGE, topic=topic, recallHandle=handle, producerGroup="p"
    )
    return head.code, head.ext.get("msgId", head.remark or "")


async def test_a_recalled_message_is_not_delivered(tmp_path: Path) -> None:
    async with running_broker(tmp_path) as running:
        client = await running.connect()
        now_ms = CLOCK.wall_ms()
        due_ms = (now_ms // 1_000 + 2) * 1_000 + 400
        wish = f"TIMER_DELIVER_MS\x01{due_ms}"
        first = await client.send(b"no", i=f"UNIQ_KEY\x01A\x02{wish}")
        second = await client.send(b"yes", i=f"UNIQ_KEY\x01B\x02{wish}")
        handle = first.ext["recallHandle"]
        assert decode_recall(handle) == ("t", "broker-a", due_ms - 399, "A")
        assert decode_recall(second.ext["recallHandle"]).unique_key == "B"
        assert await recall(client, handle) == (0, "A")
        (record,) = await delivered(client)
        assert record.body == b"yes"
        assert due_ms <= record.store_ms


@pytest.mark.parametrize(
    ("handle", "topic", "code", "remark"),
    [
        ("***", "t", 604, "recall handle is invalid"),
        (RecallHandle("u", "broker-a", 1 << 50, "k").encode(), "t", 604, "topic not match"),
        (RecallHandle("t", "other", 1 << 50, "k").encode(), "t", 604, "broker other"),
        (RecallHandle("t", "broker-a", 5, "k").encode(), "t", 604, "timestamp invalid"),
        (RecallHandle("t", "broker-a", 1 << 60, "k").encode(), "t", 604, "timestamp invalid"),
        (RecallHandle("nope", "broker-a", 5, "k").encode(), "nope", 17, "not exist"),
    ],
)
async def test_what_cannot_be_recalled_is_refused(
    tmp_path: Path, handle: str, topic: str, code: int, remark: str
) -> None:
    async with running_broker(tmp_path) as running:
        client = await running.connect()
        await client.send()
        answered, text = await recall(client, handle, topic)
        assert answered == code
        assert remark in text


async def test_recalls_can_be_turned_off(tmp_path: Path) -> None:
    async with running_broker(tmp_path, recallMessageEnable="false") as running:
        client = await running.connect()
        await client.send()
        code, remark = await recall(client, RecallHandle("t", "broker-a", 5, "k").encode())
        assert code == 16
        assert "recallMessageEnable" in remark


async def test_a_delay_level_wins_and_a_past_time_is_none(tmp_path: Path) -> None:
    async with running_broker(tmp_path, messageDelayLevel="1s") as running:
        client = await running.connect()
        far = "TIMER_DELAY_SEC\x0190000"
        assert (await client.send(b"level", i=f"DELAY\x011\x02{far}")).code == 0
        plain = await client.send(b"past", i="UNIQ_KEY\x01K\x02TIMER_DELIVER_MS\x015")
        assert "recallHandle" not in plain.ext
        first, second = await delivered(client, 2)
        assert (first.body, second.body) == (b"past", b"level")
        assert "TIMER_DELAY_SEC" not in props.decode(second.properties)
        assert props.decode(first.properties)["TIMER_DELIVER_MS"] == "5"


@pytest.mark.parametrize(
    ("text", "code", "remark"),
    [
        ("TIMER_DELAY_SEC\x01259201", 13, "timerMaxDelaySec"),
        ("TIMER_DELAY_MS\x01soon", 13, "is not a number of milliseconds"),
        ("TIMER_DELIVER_MS\x015\x02TIMER_DEL_UNIQKEY\x01t+k", 13, "if set del msg"),
    ],
)
async def test_times_that_cannot_be_are_refused(
    tmp_path: Path, text: str, code: int, remark: str
) -> None:
    async with running_broker(tmp_path) as running:
        client = await running.connect()
        head = await client.send(i=text)
        assert head.code == code
        assert remark in (head.remark or "")


async def test_a_send_to_one_topic_recalls_nothing_of_another(tmp_path: Path) -> None:
    async with running_broker(tmp_path) as running:
        client = await running.connect()
        wish = f"TIMER_DELIVER_MS\x01{CLOCK.wall_ms() + 1_500}"
        assert (await client.send(b"stays", i=f"UNIQ_KEY\x01A\x02{wish}")).code == 0
        refused = await client.send(b="u", i=f"TIMER_DEL_UNIQKEY\x01t+A\x02{wish}")
        assert (refused.code, "cannot recall" in (refused.remark or "")) == (13, True)
        assert (await client.send(b="u", i=f"TIMER_DEL_UNIQKEY\x01A\x02{wish}")).code == 0
        (record,) = await delivered(client)
        assert record.body == b"stays"


async def test_a_recall_that_is_not_safe_is_not_confirmed(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    async with running_broker(tmp_path) as running:
        client = await running.connect()
        wish = f"TIMER_DELIVER_MS\x01{CLOCK.wall_ms() + 60_000}"
        head = await client.send(i=f"UNIQ_KEY\x01A\x02{wish}")
        appender = running.broker.appender
        put = appender.put

        async def late(record: OutgoingRecord) -> PutResult:
            return msgspec.structs.replace(
                await put(record), code=int(ResponseCode.FLUSH_DISK_TIMEOUT)
            )

        monkeypatch.setattr(appender, "put", late)
        code, remark = await recall(client, head.ext["recallHandle"])
        assert (code, "try again" in remark) == (ResponseCode.FLUSH_DISK_TIMEOUT, True)


async def test_timers_can_be_turned_off(tmp_path: Path) -> None:
    async with running_broker(tmp_path, timerWheelEnable="false") as running:
        client = await running.connect()
        head = await client.send(i="TIMER_DELAY_MS\x015")
        assert head.code == 1
        assert "timerWheelEnable is false" in (head.remark or "")


async def test_nobody_sends_to_the_timer_topic_and_no_batch_is_timed(tmp_path: Path) -> None:
    async with running_broker(tmp_path) as running:
        client = await running.connect()
        head = await client.send(b="rmq_sys_wheel_timer")
        assert head.code == 16
        head = await client.send(code=BATCH, m="true", i="TIMER_DELAY_MS\x015")
        assert head.code == 13
        assert "cannot be delayed" in (head.remark or "")


async def test_a_transaction_waits_from_its_commit_on(tmp_path: Path) -> None:
    async with running_broker(tmp_path) as running:
        client = await running.connect()
        head = await client.send(
            b"paid",
            f="4",
            i="TRAN_MSG\x01true\x02PGROUP\x01producers\x02UNIQ_KEY\x01K\x02TIMER_DELAY_MS\x01300",
        )
        assert head.code == 0
        assert "recallHandle" not in head.ext
        _, records = await client.pull()
        assert records == []
        committed_ms = CLOCK.wall_ms()
        physical = int(head.ext["msgId"][-16:], 16)
        answer, _ = await client.ask(
            RequestCode.END_TRANSACTION,
            producerGroup="producers",
            tranStateTableOffset=head.ext["queueOffset"],
            commitLogOffset=str(physical),
            commitOrRollback="8",
            msgId="K",
        )
        assert answer.code == 0
        (record,) = await delivered(client)
        assert record.body == b"paid"
        assert record.store_ms >= committed_ms + 300
        assert record.sys_flag & 0xC == 8


async def test_a_retry_of_a_timed_message_is_delayed_by_its_level(tmp_path: Path) -> None:
    async with running_broker(tmp_path, messageDelayLevel="1s 1s 1s") as running:
        client = await running.connect()
        await client.send(b"again", i="UNIQ_KEY\x01K\x02TIMER_DELAY_MS\x0150")
        (record,) = await delivered(client)
        head, _ = await client.ask(
            RequestCode.CONSUMER_SEND_MSG_BACK,
            offset=str(record.physical_offset),
            group="g",
            delayLevel="1",
        )
        assert head.code == 0, head.remark
        (again,) = await delivered(client, topic="%RETRY%g", queueId="0")
        assert again.body == b"again"
        assert "TIMER_DELAY_MS" not in props.decode(again.properties)
