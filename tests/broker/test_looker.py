"""The looker: its answers are the broker's own, and its ends."""

from __future__ import annotations

import asyncio
import logging
import os
import signal
import sys
from collections.abc import Callable, Iterator
from random import Random

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from cometmq.broker.looker import IDLE_MS, Looker, is_useful, memory_bytes
from cometmq.core.clock import SystemClock, VirtualClock
from cometmq.filter.sql92 import SqlFilter
from cometmq.message import properties
from cometmq.message.record import Record, iter_decode
from cometmq.net.runtime import loop_factory
from cometmq.net.tasks import Tasks
from cometmq.store.engine import MessageStore
from cometmq.store.looking import Seen, frame
from cometmq.store.reader import Query
from cometmq.store.sifting import Sifter
from tests.broker.lookers import (
    LENGTH,
    Steady,
    fill,
    held,
    is_alive,
    looked_at,
    looking,
    open_files,
    pid_of,
    read_on,
    running_tasks,
    started,
    until,
)
from tests.store.stores import opened

ANSWERS = """
import os
while os.read(0, 1 << 20):
    os.write(1, {!r})
"""


@pytest.fixture(scope="module")
def filled(
    tmp_path_factory: pytest.TempPathFactory,
) -> Iterator[tuple[MessageStore, list[dict[str, str]]]]:
    store = opened(
        tmp_path_factory.mktemp("store"),
        mapped_file_size_commit_log=1 << 19,
        mapped_file_size_consume_queue=60_000,
    )
    yield store, fill(store, "t", LENGTH)
    store.close()


# ------------------------------------------------------------------------------------- its answers

_names = st.sampled_from(["a", "b", "c"])
_numbers = st.sampled_from(["1", "20", "-1", "1.5"])
_values = st.one_of(_numbers, st.sampled_from(["'eu'", "'x'", "'1'", "TRUE"]))
_conditions = st.one_of(
    st.builds("{} {} {}".format, _names, st.sampled_from(["=", "<>"]), _values),
    st.builds("{} {} {}".format, _names, st.sampled_from(["<", ">="]), _numbers),
    st.builds("{} IS{} NULL".format, _names, st.sampled_from(["", " NOT"])),
    st.builds("{} IN ({})".format, _names, st.sampled_from(["'eu'", "'eu', 'us', '1'"])),
    st.builds("{} STARTSWITH 'eu'".format, _names),
    st.builds("n >= {}".format, st.integers(0, LENGTH)),
)
_expressions = st.recursive(
    _conditions,
    lambda inner: st.one_of(
        st.builds("({} AND {})".format, inner, inner),
        st.builds("({} OR {})".format, inner, inner),
        st.builds("NOT ({})".format, inner),
    ),
    max_leaves=4,
)


def stored(store: MessageStore, offset: int) -> Record:
    (chunk,) = store.read("t", 1, offset, 1, 1 << 18, None).chunks
    (record,) = iter_decode(chunk)
    return record


async def read_all(
    looker: Looker, store: MessageStore, wanted: SqlFilter, pauses: Random
) -> tuple[list[int], int]:
    """The numbers of what matches, read on through the queue, sometimes behind the looker; and how
    many bytes of records were held at the most."""
    most_bytes = 0
    sifter, queue = Sifter(looker), store.queue("t", 1)
    position, found = 0, []
    while position < queue.max_offset:
        query = Query(queue, position, 32, 1 << 18, None)
        result = sifter.read(query, store.log, store.limits, wanted)
        assert result is not None
        for chunk in result.chunks:
            for record in iter_decode(chunk):
                found.append(record.queue_offset)
                assert record == stored(store, record.queue_offset)
        position = result.next_offset
        if pauses.random() < 0.3:
            await until(lambda: looker.under_way == 0, "the looker")
            most_bytes = max(most_bytes, held(looker))
    return found, most_bytes


def test_with_it_the_same_is_found_as_without(
    filled: tuple[MessageStore, list[dict[str, str]]],
) -> None:
    store, messages = filled
    encoded = [properties.encode(each) for each in messages]
    helped = gathered = 0
    with asyncio.Runner() as runner:

        async def begin() -> tuple[Tasks, Looker]:
            tasks = Tasks()
            looker = Looker(store.log, clock=SystemClock(), tasks=tasks)
            await started(looker, store, SqlFilter("a = 'nothing'"))
            return tasks, looker

        tasks, looker = runner.run(begin())

        @settings(max_examples=40, deadline=None)
        @given(_expressions, st.integers(0, 1_000))
        def check(expression: str, seed: int) -> None:
            nonlocal helped, gathered
            wanted, before = SqlFilter(expression), looked_at(looker)
            found, most_bytes = runner.run(read_all(looker, store, wanted, Random(seed)))
            assert found == [at for at, hit in enumerate(wanted.matches(encoded)) if hit]
            helped += looked_at(looker) > before
            gathered += most_bytes > 0

        check()
        runner.run(tasks.close())
    assert min(helped, gathered) > 5


@pytest.mark.parametrize("factory", [asyncio.new_event_loop, loop_factory()])
def test_it_comes_answers_and_goes_on_any_loop(
    filled: tuple[MessageStore, list[dict[str, str]]],
    factory: Callable[[], asyncio.AbstractEventLoop],
) -> None:
    store, _ = filled

    async def live() -> int:
        async with looking(store) as looker:
            assert pid_of(looker) == 0
            pid = await started(looker, store, SqlFilter("a = 'eu'"))
            assert is_alive(pid)
            assert os.getpriority(os.PRIO_PROCESS, pid) > os.getpriority(os.PRIO_PROCESS, 0)
            assert int(looker.facts()["lookerMemoryBytes"]) > 1 << 20
        assert pid_of(looker) == 0
        return pid

    with asyncio.Runner(loop_factory=factory) as runner:
        assert not is_alive(runner.run(live()))


# ---------------------------------------------------------------------------------------- its ends


async def test_who_has_nothing_to_do_ends_and_comes_again(
    filled: tuple[MessageStore, list[dict[str, str]]], caplog: pytest.LogCaptureFixture
) -> None:
    store, _ = filled
    clock = VirtualClock()
    async with looking(store, clock) as looker:
        pid = await started(looker, store, SqlFilter("a = 'eu'"))
        clock.advance(IDLE_MS + 1)
        await until(lambda: not is_alive(pid), "the end of an idle looker")
        await until(lambda: pid_of(looker) == 0, "that it is known")
        assert await started(looker, store, SqlFilter("a = 'us'")) != pid
    assert caplog.records == []


async def test_after_each_death_it_rests_longer(
    filled: tuple[MessageStore, list[dict[str, str]]], caplog: pytest.LogCaptureFixture
) -> None:
    store, _ = filled
    clock = VirtualClock()
    async with looking(store, clock) as looker:
        for number, rest_ms in enumerate((1_000, 2_000, 4_000)):
            wanted = SqlFilter(f"a = '{number}'")
            pid = await started(looker, store, wanted)
            os.kill(pid, signal.SIGKILL)
            await until(lambda: pid_of(looker) == 0, "that it is known")
            await until(lambda: "looker" not in running_tasks(), "the end of its task")
            assert len(caplog.messages) == number + 1
            clock.advance(rest_ms - 1)
            read_on(looker, store, SqlFilter(f"b = '{number}'"), 0, 32, 64)
            await asyncio.sleep(0)
            assert "looker" not in running_tasks()
            clock.advance(1)
    assert caplog.messages == ["looker_ended code=-9"] * 3


async def test_one_that_cannot_be_started_is_let_be_for_a_while(
    filled: tuple[MessageStore, list[dict[str, str]]], caplog: pytest.LogCaptureFixture
) -> None:
    store, _ = filled
    async with looking(store, command=("/no/such/program",)) as looker:
        for at in range(0, 1_000, 10):
            read_on(looker, store, SqlFilter("a = 1"), at, at + 10, at + 20)
            await asyncio.sleep(0)
        await until(lambda: bool(caplog.messages), "a line about it")
    assert [line.partition("=")[0] for line in caplog.messages] == ["looker_not_started error"]


async def test_without_memory_for_both_it_says_what_matches(
    filled: tuple[MessageStore, list[dict[str, str]]], monkeypatch: pytest.MonkeyPatch
) -> None:
    store, messages = filled
    monkeypatch.delattr(os, "memfd_create")
    async with looking(store) as looker:
        await started(looker, store, SqlFilter("a = 'nothing'"))
        found, most_bytes = await read_all(looker, store, SqlFilter("a = 'eu'"), Random(1))
        assert found == [at for at, each in enumerate(messages) if each.get("a") == "eu"]
        assert most_bytes == 0


async def test_its_memory_goes_with_it(
    filled: tuple[MessageStore, list[dict[str, str]]], caplog: pytest.LogCaptureFixture
) -> None:
    store, _ = filled
    before = open_files()
    async with looking(store) as looker:
        consumer = Steady(looker, store, SqlFilter("n >= 0"))

        def is_held() -> bool:
            consumer.read_on()
            return held(looker) > 0

        await until(is_held, "records")
        os.kill(pid_of(looker), signal.SIGKILL)
        await until(lambda: "looker" not in running_tasks(), "the end of its task")
        assert held(looker) == 0
        assert "looker" not in " ".join(open_files() - before)
    assert caplog.messages == ["looker_ended code=-9"]


@pytest.mark.parametrize(
    ("says", "error"),
    [
        (b"hello " * 9, "a frame of"),
        (frame(Seen([1], [10, 20])), "2 records of 20 bytes"),
        (frame(Seen([1, 2], [10, -20])), "2 records of -20 bytes"),
        (frame(Seen([1, 2], [10, 1 << 62])), "2 records of"),
        (frame(Seen([1, 2], [10, 20])), "2 records of 20 bytes"),  # the tray is empty
        (frame(Seen(None, [10])), "1 records of 10 bytes"),
        (frame(Seen([])) * 9, "an answer too many"),
    ],
)
async def test_one_that_answers_nonsense_is_killed(
    filled: tuple[MessageStore, list[dict[str, str]]],
    caplog: pytest.LogCaptureFixture,
    says: bytes,
    error: str,
) -> None:
    store, _ = filled
    command = (sys.executable, "-c", ANSWERS.format(says))
    async with looking(store, command=command) as looker:
        consumer = Steady(looker, store, SqlFilter("a = 1"))

        def has_ended() -> bool:
            consumer.read_on()
            return len(caplog.messages) > 1

        await until(has_ended, "lines about it")
        assert held(looker) == 0
    first, second = caplog.messages
    assert first.startswith(f"looker_answer_unreadable error='{error}")
    assert second == "looker_ended code=-9"


def test_memory_of_a_process_is_its_own() -> None:
    before = memory_bytes(os.getpid())
    more = bytearray(os.urandom(1 << 12) * (1 << 13))
    assert memory_bytes(os.getpid()) - before > len(more) // 2
    assert memory_bytes(1 << 40) == 0


def test_it_needs_a_second_processor() -> None:
    assert is_useful(2)
    assert not is_useful(1)
    assert is_useful() in (True, False)


@pytest.fixture(autouse=True)
def _only_ours(caplog: pytest.LogCaptureFixture) -> None:
    """What is logged counts from warnings on."""
    caplog.set_level(logging.WARNING)
