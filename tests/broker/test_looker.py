"""The looker beside a broker: its answers are the broker's own, and its death costs nothing."""

from __future__ import annotations

import asyncio
import logging
import os
import signal
import sys
import time
from collections.abc import AsyncIterator, Callable, Iterator, Sequence
from contextlib import asynccontextmanager, suppress
from itertools import pairwise
from pathlib import Path
from random import Random

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from cometmq.broker import looker as module
from cometmq.broker import pull
from cometmq.broker.looker import COMMAND, IDLE_MS, Looker, is_useful, memory_bytes
from cometmq.core.clock import Clock, SystemClock, VirtualClock
from cometmq.filter.sql92 import SqlFilter
from cometmq.message import properties
from cometmq.message.record import Record, iter_decode
from cometmq.net.runtime import loop_factory
from cometmq.net.tasks import Tasks
from cometmq.protocol.codes import RequestCode
from cometmq.store.engine import MessageStore
from cometmq.store.reader import Query
from cometmq.store.sifting import Sifter
from tests.broker.serving import SMALL, BrokerClient, RunningBroker, running_broker
from tests.store.stores import opened, put

LENGTH = 6_000
WAIT_S = 20
TALKS_NONSENSE = (sys.executable, "-c", "print('hello ' * 9, flush=True); input()")


async def until(true: Callable[[], bool], what: str) -> None:
    deadline = time.monotonic() + WAIT_S
    while not true():
        assert time.monotonic() < deadline, f"waited too long: {what}"
        await asyncio.sleep(0.005)


def is_alive(pid: int) -> bool:
    """Whether a process is there and did not end."""
    try:
        state = Path(f"/proc/{pid}/stat").read_text().rpartition(") ")[2]
    except (FileNotFoundError, ProcessLookupError):
        return False
    return state[0] not in "ZX"


def fill(store: MessageStore, topic: str, count: int, seed: int = 0) -> list[dict[str, str]]:
    """Messages of queue 1 with properties of any kind; gives these."""
    chance = Random(seed)
    made = []
    for number in range(count):
        more = {
            "a": chance.choice(["1", "20", "300", "x", "eu", ""]),
            "b": chance.choice(["eu", "europe", "us", "1.5", ""]),
            "n": str(number),
        }
        made.append({name: value for name, value in more.items() if value})
        put(store, topic, 1, b"body", more=made[-1])
        put(store, topic, 0, b"between")
        if not number % 100:
            store.commit()
    store.commit()
    return made


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


@asynccontextmanager
async def looking(
    store: MessageStore, clock: Clock | None = None, command: Sequence[str] = COMMAND
) -> AsyncIterator[Looker]:
    tasks = Tasks()
    try:
        yield Looker(store.log, clock=clock or SystemClock(), tasks=tasks, command=command)
    finally:
        await tasks.close()


def open_files() -> set[str]:
    """What this process has open, by its names."""
    found = set()
    for handle in os.listdir("/proc/self/fd"):
        with suppress(FileNotFoundError):  # the listing itself
            found.add(os.readlink(f"/proc/self/fd/{handle}"))
    return found


def running_tasks() -> set[str]:
    return {task.get_name() for task in asyncio.all_tasks()}


def pid_of(looker: Looker) -> int:
    return int(looker.facts()["lookerPid"])


def looked_at(looker: Looker) -> int:
    return int(looker.facts()["lookerLookedAt"])


def held(looker: Looker) -> int:
    return int(looker.facts()["lookerHeldBytes"])


def read_on(looker: Looker, store: MessageStore, wanted: SqlFilter, *positions: int) -> None:
    queue = store.queue("t", 1)
    for start, position in pairwise(positions):
        looker.read_on(queue, wanted, start, position)


async def started(looker: Looker, store: MessageStore, wanted: SqlFilter) -> int:
    """Have a consumer come that it can help, and wait until it did; gives its pid."""
    before, position = looked_at(looker), 0

    def was_helped() -> bool:
        nonlocal position
        read_on(looker, store, wanted, position, position + 1)
        position += 1
        return looked_at(looker) > before

    await until(was_helped, "an answer of the looker")
    return pid_of(looker)


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
) -> list[int]:
    """The numbers of what matches, read on through the queue, sometimes behind the looker."""
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
    return found


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
            found = runner.run(read_all(looker, store, wanted, Random(seed)))
            assert found == [at for at, hit in enumerate(wanted.matches(encoded)) if hit]
            helped += looked_at(looker) > before
            gathered += held(looker) > 0

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
        found = await read_all(looker, store, SqlFilter("a = 'eu'"), Random(1))
        assert found == [at for at, each in enumerate(messages) if each.get("a") == "eu"]
        assert held(looker) == 0


async def test_its_memory_goes_with_it(
    filled: tuple[MessageStore, list[dict[str, str]]], caplog: pytest.LogCaptureFixture
) -> None:
    store, _ = filled
    before = open_files()
    async with looking(store) as looker:
        pid = await started(looker, store, SqlFilter("n >= 0"))
        assert held(looker) > 0
        os.kill(pid, signal.SIGKILL)
        await until(lambda: "looker" not in running_tasks(), "the end of its task")
        assert held(looker) == 0
        assert "looker" not in " ".join(open_files() - before)
    assert caplog.messages == ["looker_ended code=-9"]


async def test_one_that_answers_nonsense_is_killed(
    filled: tuple[MessageStore, list[dict[str, str]]], caplog: pytest.LogCaptureFixture
) -> None:
    store, _ = filled
    wanted = SqlFilter("a = 1")
    async with looking(store, command=TALKS_NONSENSE) as looker:
        read_on(looker, store, wanted, 0, 32, 64)
        await until(lambda: len(caplog.messages) > 1, "lines about it")
    first, second = caplog.messages
    assert first.startswith("looker_answer_unreadable error='a frame of")
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


# ------------------------------------------------------------------------------- beside a broker


@pytest.fixture
def second_processor(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(pull, "is_useful", lambda: True)


async def pulled(
    client: BrokerClient, expression: str, start: int = 0, stop: int = LENGTH
) -> AsyncIterator[list[Record]]:
    """Answer by answer what matches, up to ``stop``."""
    while start < stop:
        head, records = await client.pull(
            start, subscription=expression, expressionType="SQL92", subVersion="1"
        )
        assert head.code in (0, 20)
        yield records
        start = int(head.ext["nextBeginOffset"])


async def numbers_of(client: BrokerClient, expression: str) -> list[int]:
    answers = [records async for records in pulled(client, expression)]
    found = [properties.decode(record.properties) for records in answers for record in records]
    return [int(each["n"]) for each in found]


async def begun(running: RunningBroker) -> tuple[BrokerClient, list[dict[str, str]]]:
    client = await running.connect()
    await client.send()  # makes the topic
    store = running.broker.store
    made = fill(store, "t", LENGTH - 1)
    return client, [{}, *made]


@pytest.mark.usefixtures("second_processor")
async def test_killed_under_load_nothing_is_lost(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    monkeypatch.setattr(module, "FIRST_REST_MS", 1)
    monkeypatch.setattr(module, "MAX_REST_MS", 1)
    async with running_broker(tmp_path) as running:
        client, messages = await begun(running)
        looker = running.broker.pull.looker
        assert looker is not None
        killed: set[int] = set()
        deadline = time.monotonic() + WAIT_S
        for number in range(1, 1_000):
            expression = f"n >= {number} AND a = 'eu'"
            found = []
            async for records in pulled(client, expression):
                found += [int(properties.decode(each.properties)["n"]) for each in records]
                pid = pid_of(looker)
                if pid and pid not in killed and looked_at(looker):
                    os.kill(pid, signal.SIGKILL)
                    killed.add(pid)
            wanted = [
                int(each["n"])
                for each in messages
                if each.get("a") == "eu" and int(each["n"]) >= number
            ]
            assert found == wanted
            if len(killed) >= 3:
                break
            assert time.monotonic() < deadline
        await until(
            lambda: caplog.messages.count("looker_ended code=-9") >= 3, "lines about the deaths"
        )


@pytest.mark.usefixtures("second_processor")
async def test_a_queue_that_is_made_anew_while_it_is_looked_at(tmp_path: Path) -> None:
    async with running_broker(tmp_path) as running:
        client, _ = await begun(running)
        looker = running.broker.pull.looker
        assert looker is not None
        await numbers_of(client, "a = 'eu'")
        await until(lambda: pid_of(looker) > 0, "the looker")
        pid = pid_of(looker)
        os.kill(pid, signal.SIGSTOP)
        before = looked_at(looker)
        expression = "a IN ('eu', 'x')"
        async for _ in pulled(client, expression, stop=1_000):
            pass
        head, _ = await client.ask(RequestCode.DELETE_TOPIC_IN_BROKER, topic="t")
        assert head.code == 0
        await client.send()
        messages = [{}, *fill(running.broker.store, "t", LENGTH - 1, seed=1)]
        os.kill(pid, signal.SIGCONT)
        assert await numbers_of(client, expression) == [
            int(each["n"]) for each in messages if each.get("a") in ("eu", "x")
        ]
        assert await numbers_of(client, "b = 'us'") == [
            int(each["n"]) for each in messages if each.get("b") == "us"
        ]
        await until(lambda: looked_at(looker) > before, "an answer of the looker")


async def test_it_can_be_turned_off(tmp_path: Path) -> None:
    async with running_broker(tmp_path, filterLookahead="false") as running:
        assert running.broker.pull.looker is None


BROKER = """
import sys
import cometmq.broker.pull as pull
pull.is_useful = lambda: True
from cometmq.cli.main import main
sys.argv[0] = "cometmq"
main()
"""


def child_of(pid: int) -> int:
    """The looker of a broker; 0 when it has none."""
    for found in Path("/proc").glob("[0-9]*"):
        try:
            parent = int((found / "stat").read_text().rpartition(") ")[2].split()[1])
            if parent == pid and b"cometmq.store.tools.look" in (found / "cmdline").read_bytes():
                return int(found.name)
        except (FileNotFoundError, ProcessLookupError):
            continue
    return 0


async def test_a_broker_that_is_killed_leaves_none(tmp_path: Path) -> None:
    small = [f"{key}={value}" for key, value in SMALL.items()]
    words = ["--store", str(tmp_path / "store"), "--namesrv-port", "0", "--broker-port", "0"]
    for each in small:
        words += ["--set", each]
    store = opened(
        tmp_path / "store",
        mapped_file_size_commit_log=1 << 20,
        mapped_file_size_consume_queue=60_000,
        max_hash_slot_num=1_000,
        max_index_num=4_000,
    )
    fill(store, "t", LENGTH)
    store.close()
    process = await asyncio.create_subprocess_exec(
        *(sys.executable, "-c", BROKER, "start", *words), stdout=asyncio.subprocess.PIPE
    )
    try:
        assert process.stdout is not None
        line = (await process.stdout.readline()).decode()
        port = int(line.partition("broker=")[2].split()[0].rpartition(":")[2])
        client = BrokerClient(*await asyncio.open_connection("127.0.0.1", port))
        pid = number = 0
        deadline = time.monotonic() + WAIT_S
        while not pid:
            assert time.monotonic() < deadline
            number += 1
            await numbers_of(client, f"n > {number}")
            pid = child_of(process.pid)
        client.writer.close()
    finally:
        process.kill()
        await process.wait()
    await until(lambda: not is_alive(pid), "the end of the looker")


@pytest.fixture(autouse=True)
def _only_ours(caplog: pytest.LogCaptureFixture) -> None:
    """What is logged counts from warnings on."""
    caplog.set_level(logging.WARNING)
