"""Connections in memory: order, delays, and every way to break."""

import asyncio
from collections.abc import Callable, Coroutine, Iterator
from random import Random
from typing import Any

import pytest

from tests.simulation.cluster.clock import SimClock
from tests.simulation.cluster.loop import Process, SimLoop
from tests.simulation.cluster.network import End, Network, Weather
from tests.simulation.cluster.trace import Trace

HERE, THERE = "127.0.2.1", "127.0.1.1"
ADDRESS = THERE, 10911


class Recorder(asyncio.Protocol):
    """Records the bytes that it receives; ``on_data`` may answer."""

    def __init__(self, on_data: Callable[["Recorder", bytes], None] | None = None) -> None:
        self.got = b""
        self.pieces = 0
        self.calls: list[str] = []
        self.lost: list[Exception | None] = []
        self.end: End
        self._on_data = on_data

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        assert isinstance(transport, End)
        self.end = transport

    def data_received(self, data: bytes) -> None:
        self.got += data
        self.pieces += 1
        if self._on_data is not None:
            self._on_data(self, data)

    def pause_writing(self) -> None:
        self.calls.append("pause")

    def resume_writing(self) -> None:
        self.calls.append("resume")

    def connection_lost(self, exc: Exception | None) -> None:
        self.lost.append(exc)


class World:
    """A server and a client process."""

    def __init__(self, weather: Weather, seed: int = 1) -> None:
        self.loop = SimLoop()
        self.clock = SimClock(self.loop)
        self.network = Network(self.loop, Random(seed), Trace(self.loop))
        self.network.weather = weather
        self.server = Process("server", THERE)
        self.client = Process("client", HERE)
        self.network.join(self.client)
        self.reserve = self.network.reserver(self.server)
        self.served: list[Recorder] = []

    def serve(self, on_data: Callable[[Recorder, bytes], None] | None = None) -> None:
        """Accept connections."""

        def make() -> Recorder:
            self.served.append(Recorder(on_data))
            return self.served[-1]

        self.network.serve(self.reserve(*ADDRESS), make)

    def run(self, main: Coroutine[Any, Any, None]) -> None:
        """Run as the client."""
        self.loop.run_until_complete(self.loop.launch(self.client, main))

    async def connect(self) -> Recorder:
        """Open a connection of the client."""
        _, protocol = await self.loop.create_connection(Recorder, *ADDRESS)
        assert isinstance(protocol, Recorder)
        return protocol


@pytest.fixture(params=[Weather(), Weather((100, 5_000, 300_000), split=0.7)])
def world(request: pytest.FixtureRequest) -> Iterator[World]:
    made = World(request.param)
    yield made
    made.loop.dispose()


def test_bytes_arrive_in_order_and_later(world: World) -> None:
    world.serve(lambda recorder, data: recorder.end.write(data.upper()))

    async def main() -> None:
        made = await world.connect()
        begin_us = world.loop.now_us
        for number in range(50):
            made.end.write(b"%d abc " % number)
        made.end.writelines([b"the ", b"end"])
        await world.clock.sleep_ms(5_000)
        assert world.loop.now_us > begin_us
        expected = b"".join(b"%d ABC " % number for number in range(50)) + b"THE END"
        assert made.got == expected
        assert made.end.get_extra_info("peername") == ADDRESS
        assert world.served[0].end.get_extra_info("peername")[0] == HERE
        made.end.close()
        await world.clock.sleep_ms(1_000)
        assert made.lost == [None]
        assert world.served[0].lost == [None]

    world.run(main())


def test_nobody_listens(world: World) -> None:
    async def main() -> None:
        with pytest.raises(ConnectionRefusedError):
            await world.connect()
        listener = world.reserve(*ADDRESS)
        with pytest.raises(OSError, match="in use"):
            world.reserve(*ADDRESS)
        with pytest.raises(ConnectionRefusedError):
            await world.connect()
        listener.close()
        world.serve()
        await world.connect()

    world.run(main())


def test_a_process_that_ends_closes_its_connections(world: World) -> None:
    world.serve()

    async def main() -> None:
        made = [await world.connect() for _ in range(8)]
        world.served[0].end.write(b"last words")
        world.server.end()
        await world.clock.sleep_ms(1_000)
        assert all(len(each.lost) == 1 for each in made)
        assert {type(each.lost[0]) for each in made} <= {type(None), ConnectionResetError}
        assert made[0].got in (b"last words", b"")
        with pytest.raises(ConnectionRefusedError):
            await world.connect()
        assert all(each.lost == [] for each in world.served)

    world.run(main())


def test_a_host_without_power_says_nothing_until_it_is_up_again(world: World) -> None:
    world.serve()

    async def main() -> None:
        made = await world.connect()
        world.network.power_off(THERE)
        world.server.end()
        made.end.write(b"are you there?")
        await world.clock.sleep_ms(60_000)
        assert made.lost == []
        with pytest.raises(TimeoutError):
            async with asyncio.timeout(30):
                await world.connect()
        world.network.power_on(THERE)
        await world.clock.sleep_ms(5_000)
        assert isinstance(made.lost[0], ConnectionResetError)

    world.run(main())


def test_a_cut_holds_bytes_up_and_loses_none(world: World) -> None:
    world.serve(lambda recorder, data: recorder.end.write(data))

    async def main() -> None:
        made = await world.connect()
        world.network.cut(HERE, THERE)
        made.end.write(b"one ")
        await world.clock.sleep_ms(30_000)
        made.end.write(b"two ")
        assert world.served[0].got == b""
        world.served[0].end.write(b"heard ")
        await world.clock.sleep_ms(1_000)
        assert made.got == b"heard "
        world.network.heal()
        made.end.write(b"three")
        await world.clock.sleep_ms(5_000)
        assert made.got == b"heard one two three"

    world.run(main())


def test_who_is_cut_off_connects_once_that_is_over(world: World) -> None:
    world.serve()

    async def main() -> None:
        world.network.cut(THERE, HERE)
        connecting = world.loop.create_task(world.connect())
        await world.clock.sleep_ms(10_000)
        assert not connecting.done()
        world.network.heal()
        await connecting

    world.run(main())


async def ended_behind_a_cut(world: World) -> Recorder:
    """A client that was cut off from its server when that sent its last bytes and ended."""
    made = await world.connect()
    world.network.cut(THERE, HERE)
    world.served[0].end.write(b"farewell")
    await world.clock.sleep_ms(2_000)
    world.server.end()
    return made


def test_last_words_of_an_ended_process_pass_a_cut_that_heals(world: World) -> None:
    world.serve()

    async def main() -> None:
        made = await ended_behind_a_cut(world)
        await world.clock.sleep_ms(2_000)
        assert made.lost == []
        world.network.heal()
        await world.clock.sleep_ms(5_000)
        assert len(made.lost) == 1

    world.run(main())


def test_last_words_of_an_ended_process_are_lost_with_the_power(world: World) -> None:
    world.serve()

    async def main() -> None:
        made = await ended_behind_a_cut(world)
        world.network.power_off(THERE)
        world.network.heal()
        await world.clock.sleep_ms(5_000)
        assert not made.got

    world.run(main())


def test_an_abort_and_a_broken_connection_are_resets(world: World) -> None:
    world.serve()

    async def main() -> None:
        made = await world.connect()
        world.served[0].end.abort()
        await world.clock.sleep_ms(1_000)
        assert world.served[0].lost == [None]
        assert isinstance(made.lost[0], ConnectionResetError)
        other = await world.connect()
        assert world.network.break_connections(1.0) == 1
        await world.clock.sleep_ms(1_000)
        assert isinstance(other.lost[0], ConnectionResetError)
        assert isinstance(world.served[1].lost[0], ConnectionResetError)
        assert world.network.break_connections(1.0) == 0

    world.run(main())


def test_who_does_not_read_holds_up_who_writes(world: World) -> None:
    world.serve()

    async def main() -> None:
        made = await world.connect()
        await world.clock.sleep_ms(1_000)
        server = world.served[0]
        server.end.pause_reading()
        assert not server.end.is_reading()
        made.end.set_write_buffer_limits(high=1_000)
        made.end.write(bytes(600))
        assert made.calls == []
        made.end.write(bytes(600))
        assert made.calls == ["pause"]
        made.end.close()
        await world.clock.sleep_ms(1_000)
        assert made.end.get_write_buffer_size() == 1_200
        assert server.got == b""
        server.end.resume_reading()
        await world.clock.sleep_ms(1_000)
        assert len(server.got) == 1_200
        assert server.lost == [None]
        assert made.end.is_closing()

    world.run(main())


def test_a_writer_goes_on_when_there_is_room_again(world: World) -> None:
    world.serve()

    async def main() -> None:
        made = await world.connect()
        made.end.set_write_buffer_limits(high=1_000)
        made.end.write(bytes(2_000))
        await world.clock.sleep_ms(1_000)
        assert made.calls == ["pause", "resume"]

    world.run(main())


def test_who_gives_up_connecting_leaves_nothing_open() -> None:
    world = World(Weather((1_000,)))
    world.serve()

    async def main() -> None:
        with pytest.raises(TimeoutError):
            async with asyncio.timeout(0.0015):
                await world.connect()
        await world.clock.sleep_ms(100)
        assert [each.lost for each in world.served] == [[None]]

    world.run(main())
    world.loop.dispose()
