"""Filters of any size at a whole broker: what is much work is refused or done in parts, and others
do not wait for it."""

from __future__ import annotations

import asyncio
import threading
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import msgspec
import pytest

from cometmq.broker.pull import filtering, newtexts
from cometmq.broker.pull.longpoll import HeldPull
from cometmq.filter.sql92 import SqlFilter
from cometmq.filter.sqltext import MAX_CHARS
from cometmq.net.limits import Limit
from cometmq.protocol.codes import RequestCode
from cometmq.store.read.reader import ReadResult
from tests.broker.pull.test_filtering import SQL, bodies, fill, subscribe
from tests.broker.serving import PULL, BrokerClient, pull_fields, running_broker
from tests.pace import processor_time_within

#: More than 1 500 parts: a read looks at 13 messages.
HEAVY = " OR ".join(f"p{number} = 1" for number in range(500))
#: More words than the loop parses at once.
LONG = " OR ".join(f"p{number} = 1" for number in range(100))
BAD = {
    "deep": "a=" * 400 + "a",
    "long": "number=1 OR " * (MAX_CHARS // 12 - 1) + "number=1",
    "zeros": "number = " + "0" * 60_000,
    "signs": "number = " + "-" * 60_000,
    "digits": "number = 1" + "0" * 5_000,
}


async def check(client: BrokerClient, text: str) -> Any:
    body = {
        "clientId": "c", "group": "g",
        "subscriptionData": {"topic": "t", "subString": text, "expressionType": "SQL92"},
    }  # fmt: skip
    return (await client.ask(RequestCode.CHECK_CLIENT_CONFIG, msgspec.json.encode(body)))[0]


@pytest.mark.parametrize("kind", BAD)
async def test_what_is_too_much_is_refused_in_one_way(tmp_path: Path, kind: str) -> None:
    text = BAD[kind]
    async with running_broker(tmp_path) as running:
        client = await running.connect()
        await fill(client, 3)
        await subscribe(client, ("number = 1", 1))
        with processor_time_within(1):
            head = await check(client, text)
            pulled, _ = await client.pull(subscription=text, **SQL)
            assert (head.code, pulled.code) == (23, 23)
            assert head.remark == pulled.remark
            assert len(head.remark or "") < 1_000
            # A heartbeat is taken, as by Java's broker, and its unreadable filter is not.
            await subscribe(client, (text, 2))
        head, _ = await client.pull(sysFlag="0", subVersion="2")
        assert head.code == 27


async def test_what_is_wrong_is_found_once(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Who repeats it costs others no more than who asks for something known."""
    parsed: list[str] = []

    def counted(text: str) -> SqlFilter:
        parsed.append(text)
        return SqlFilter(text)

    monkeypatch.setattr(filtering, "SqlFilter", counted)
    async with running_broker(tmp_path) as running:
        client = await running.connect()
        await fill(client, 1)
        remarks = set()
        for _ in range(10):
            head, _ = await client.pull(subscription="number = = 1", **SQL)
            assert head.code == 23
            remarks.add(head.remark)
        assert len(remarks) == len(parsed) == 1


async def pulled_when_parsed(client: BrokerClient, text: str, offset: int = 0) -> Any:
    """The answer to a pull with an expression that may be parsed beside the loop first."""
    async with asyncio.timeout(60):
        while True:
            head, records = await client.pull(offset, subscription=text, **SQL)
            if head.code != 2 or "is being parsed" not in (head.remark or ""):
                return head, records
            await asyncio.sleep(0.01)


async def test_a_long_expression_is_parsed_beside_the_loop(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    places: list[bool] = []

    def noted(text: str) -> SqlFilter:
        places.append(threading.current_thread() is threading.main_thread())
        return SqlFilter(text)

    monkeypatch.setattr(filtering, "SqlFilter", noted)
    async with running_broker(tmp_path) as running:
        client = await running.connect()
        await fill(client, 3)
        head, _ = await client.pull(subscription=LONG, **SQL)
        assert (head.code, "is being parsed" in (head.remark or "")) == (2, True)
        assert (await pulled_when_parsed(client, LONG))[0].code == 20
        assert places == [False]
        # A check waits, so that a consumer does not fail to start. What is wrong is remembered too.
        other = await running.connect()
        assert (await check(other, LONG.replace("p", "q"))).code == 0
        third = await running.connect()
        assert [(await check(third, LONG + " OR")).code for _ in range(3)] == [23] * 3
        assert places == [False] * 3
        # Another connection is served on the loop, as always.
        assert (await (await running.connect()).pull(subscription="number = 1", **SQL))[0].code == 0
        assert places == [False] * 3 + [True]


async def test_the_filter_of_a_heartbeat_is_registered_by_the_first_pull(tmp_path: Path) -> None:
    async with running_broker(tmp_path) as running:
        client = await running.connect()
        await fill(client, 3)
        await subscribe(client, (LONG + " OR number = 2", 7))
        async with asyncio.timeout(60):
            while (head := (await client.pull(sysFlag="0", subVersion="7"))[0]).code == 2:
                await asyncio.sleep(0.01)
        assert head.code == 0


async def test_many_new_expressions_wait_and_known_ones_do_not(tmp_path: Path) -> None:
    async with running_broker(tmp_path) as running:
        greedy, client = await running.connect(), await running.connect()
        await fill(client, 1)
        assert (await client.pull(subscription="number = 0", **SQL))[0].code == 0
        codes = []
        for number in range(8):
            text = HEAVY.replace("p", f"q{number}x")
            codes.append((await pulled_when_parsed(greedy, text))[0].code)
        assert codes[0] == 20
        assert set(codes[1:]) == {2}
        assert (await check(greedy, "number = 77")).code in (0, 2)
        assert running.broker.stats.limits.hits[Limit.NEW_FILTERS] >= 7
        assert (await greedy.pull(subscription="number = 0", **SQL))[0].code == 0
        assert (await client.pull(subscription="number < 1", **SQL))[0].code == 0


async def test_a_subscription_of_any_size_is_not_read(tmp_path: Path) -> None:
    async with running_broker(tmp_path) as running:
        client = await running.connect()
        head = await check(client, " " * filtering.MAX_CHECK_BYTES)
        assert (head.code, "over the limit" in (head.remark or "")) == (1, True)


async def test_much_work_is_done_in_parts_and_nothing_is_lost(tmp_path: Path) -> None:
    async with running_broker(tmp_path) as running:
        client = await running.connect()
        await fill(client, 100)
        wanted = HEAVY + " OR number = 70 OR number = 99"
        offset, seen, reads = 0, [], 0
        while offset < 100:
            head, records = await pulled_when_parsed(client, wanted, offset)
            assert head.code == (0 if records else 20)
            assert offset < int(head.ext["nextBeginOffset"]) <= offset + 13
            offset, reads = int(head.ext["nextBeginOffset"]), reads + 1
            seen += bodies(records)
        assert seen == [70, 99]
        assert reads == 8


async def test_messages_from_the_device_are_looked_at_in_parts_too(tmp_path: Path) -> None:
    async with running_broker(tmp_path, accessMessageInMemoryMaxRatio="0") as running:
        client = await running.connect()
        await fill(client, 40)
        offset, seen = 0, []
        while offset < 40:
            head, records = await pulled_when_parsed(client, f"{HEAVY} OR number = 39", offset)
            assert head.code in (0, 20)
            assert offset < int(head.ext["nextBeginOffset"]) <= offset + 13
            offset = int(head.ext["nextBeginOffset"])
            seen += bodies(records)
        assert seen == [39]


async def test_a_held_pull_looks_on_in_parts(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    async with running_broker(tmp_path) as running:
        client, puller = await running.connect(), await running.connect()
        await fill(client, 1)
        text = f"{HEAVY} OR number = 60"
        assert (await check(client, text)).code == 0
        wanted = pull_fields(
            1, subscription=text, sysFlag="6", suspendTimeoutMillis="20000", **SQL
        )  # fmt: skip
        puller.post(PULL, **wanted)
        async with asyncio.timeout(60):
            while running.broker.pull.handler.longpoll.count != 1:
                await asyncio.sleep(0.001)
        longpoll, looked_from = running.broker.pull.handler.longpoll, []
        look_on, wake = longpoll.look_on, longpoll.wake

        def noted(pull: HeldPull) -> None:
            looked_from.append(pull.offset)
            look_on(pull)

        monkeypatch.setattr(longpoll, "look_on", noted)
        monkeypatch.setattr(longpoll, "wake", lambda grown: None)
        await fill(client, 60, first=1)
        wake([(("t", 1), 61)])
        async with asyncio.timeout(60):
            answer, _ = await puller.frame()
        assert (answer.code, answer.ext["nextBeginOffset"]) == (0, "61")
        assert looked_from == [14, 27, 40, 53]


async def test_what_is_remembered_of_filters_is_bounded(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(filtering, "MAX_REMEMBERED_BYTES", 400_000)
    for name in ("SENDER_AT_ONCE", "ALL_AT_ONCE"):
        monkeypatch.setattr(newtexts, name, 1 << 30)
    async with running_broker(tmp_path) as running:
        client, filters = await running.connect(), running.broker.pull.filters
        await fill(client, 1)
        for number in range(60):
            text = f"number = 7 OR {HEAVY.replace('p', f'p{number}x')}"
            assert (await pulled_when_parsed(client, text[:30_000]))[0].code in (20, 23)
            text = "||".join(f"tag{number}x{each}" for each in range(1_000))
            assert (await client.pull(subscription=text))[0].code == 20
        assert filters._known_bytes <= 400_000
        assert 0 < len(filters._known) < 8
        # Of those that nobody uses nothing is kept.
        assert filters._live_bytes < 8 * 1_500_000


async def test_beyond_the_memory_for_filters_pulls_are_not_held(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(filtering, "MAX_LIVE_BYTES", 15_000)
    async with running_broker(tmp_path) as running:
        client = await running.connect()
        await fill(client, 1)
        for number in range(10):
            held = {"sysFlag": "6", "suspendTimeoutMillis": "20000"} | SQL
            client.post(PULL, **pull_fields(1, subscription=f"number > {number}", **held))
        async with asyncio.timeout(60):
            answers = [(await client.frame())[0] for _ in range(8)]
        assert {answer.code for answer in answers} == {19}
        assert running.broker.pull.handler.longpoll.count == 2


async def test_a_property_of_any_length_does_not_stop_a_group(tmp_path: Path) -> None:
    async with running_broker(tmp_path) as running:
        client = await running.connect()
        for text in ("1" * 5_000, "1" * 32_000 + "x", "0" * 32_000 + "7"):
            assert (await client.send(b"0", i=f"number\x01{text}")).code == 0
        await fill(client, 8, first=1)
        with processor_time_within(1):
            for expression in ("number = 7", "number > 6.5 AND number < 7.5"):
                head, records = await client.pull(subscription=expression, **SQL)
                assert (head.code, bodies(records)) == (0, [0, 7])


async def test_others_are_served_between_those_who_filter(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Many connections filter at once: each turn of the loop ends with the first long look."""
    async with running_broker(tmp_path) as running:
        client = await running.connect()
        await fill(client, 13)
        for number in range(5):  # a new expression is parsed when its pull is served alone
            await client.pull(subscription=f"number = {number}", **SQL)
        pull = running.broker.pull.handler
        happened: list[str] = []
        look, answers = pull._look, pull._answers

        def long_look() -> None:
            asyncio.get_running_loop().call_soon(happened.append, "turn")
            happened.append("look")
            pull.longpoll.rest()

        def slow(*asked: Any) -> ReadResult | None:
            long_look()
            return look(*asked)

        def take(data: bytes, at: int, suggests: int, may_match: bool, access: Any) -> Any:
            if may_match:
                long_look()
            return answers.take(data, at, suggests, may_match, access)

        monkeypatch.setattr(pull, "_look", slow)
        monkeypatch.setattr(pull, "_answers", SimpleNamespace(take=take))
        clients = [await running.connect() for _ in range(5)]
        for number, each in enumerate(clients):
            for _ in range(2):
                each.post(PULL, **pull_fields(0, subscription=f"number = {number}", **SQL))
        for each in clients:
            for _ in range(2):
                head, _ = await each.frame()
                assert (head.code, head.ext["nextBeginOffset"]) == (0, "13")
        assert happened == ["look", "turn"] * 10
