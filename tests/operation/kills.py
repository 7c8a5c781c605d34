"""`kill -9` in the middle of a load: what was acknowledged is there, once, in its place.

The sender never sends a message again, so a message that occurs twice was stored twice, and one
that is missing was lost by the broker. A campaign is one store and one set of settings, drawn from
its seed. Each round sends until a random number of answers came, kills the process with sends on
their way, and starts it on the same store and ports; some starts are killed, too. Then every queue
is read, and every acknowledged key of the round is looked up.

    python -m tests.operation.kills 500             so many kills; says how many sends they hit
        --state FILE     note what is done there, and go on from there next time
        --seconds N      begin no campaign after so long; what is left is for the next call

The exit code is 0 when all is done and nothing was found, 1 when something was found (the store of
the campaign is kept), 3 when kills are left.
"""

import argparse
import asyncio
import json
import shutil
import sys
import tempfile
import time
import traceback
from collections import Counter
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass, field
from itertools import islice
from pathlib import Path
from random import Random

from cometmq.admin.node import NodeFailed, NodeProcess
from cometmq.core.clock import SystemClock
from cometmq.message import properties
from cometmq.message.record import Record
from cometmq.protocol.codes import RequestCode, ResponseCode
from cometmq.protocol.headers import SendMessageV2
from cometmq.testing.cluster import ProcessCluster, Setting
from tests.operation.raw import (
    Lost,
    Pending,
    RawPeer,
    create_topic,
    pull_queue,
    query_keys,
    send_header,
)

QUEUES = 4
IN_FLIGHT = 64
#: Written right before the kill: more than the broker can answer before the signal arrives.
BURST = 256
TOPIC = "kill"
KILLS_A_CAMPAIGN = 25


@dataclass(frozen=True, slots=True)
class Sent:
    """A message that was written to the socket, once."""

    key: str
    queue_id: int
    body: bytes


@dataclass(slots=True)
class Round:
    """What one round wrote, and what of it was acknowledged at which queue offset."""

    sent: list[Sent] = field(default_factory=list)
    acknowledged: dict[str, int] = field(default_factory=dict)
    answers: list[tuple[Sent, Pending]] = field(default_factory=list)
    unanswered: int = 0

    def settle(self) -> int:
        """Sort the ended sends into acknowledged and not; gives how many got no answer."""
        unanswered = 0
        for message, answer in self.answers:
            if isinstance(answer.exception(), Lost):
                unanswered += 1
                continue
            response = answer.result()
            assert response.code == ResponseCode.SUCCESS, response.remark
            assert int(response.ext["queueId"]) == message.queue_id
            self.acknowledged[message.key] = int(response.ext["queueOffset"])
        self.answers.clear()
        return unanswered


@dataclass(frozen=True, slots=True)
class Outcome:
    """What a campaign did. ``kills`` counts those that hit sends on their way, ``starts_killed``
    starts that did not get to their end."""

    kills: int
    starts_killed: int
    acknowledged: int
    unanswered: int


def settings_of(chance: Random) -> dict[str, Setting]:
    """Files that are full after some rounds or some dozen messages, and flushes of both kinds."""
    small = chance.random() < 0.5
    return {
        "mappedFileSizeCommitLog": (256 if small else 2048) * 1024,
        "mappedFileSizeConsumeQueue": 4_000 if small else 60_000,
        "maxHashSlotNum": 500 if small else 10_000,
        "maxIndexNum": 2_000 if small else 40_000,
        "flushDiskType": chance.choice(("ASYNC_FLUSH", "SYNC_FLUSH")),
        "flushIntervalConsumeQueue": chance.choice((50, 1_000)),
        "flushConsumeQueueThoroughInterval": chance.choice((200, 60_000)),
    }


def messages(number: int, chance: Random) -> Iterator[Sent]:
    """Endless messages of one round, of mixed sizes, over all queues."""
    count = 0
    while True:
        key = f"r{number:02d}m{count:06d}"
        filler = chance.randbytes(chance.choice((32, 128, 1024, 4096)))
        yield Sent(key, chance.randrange(QUEUES), key.encode() + filler)
        count += 1


def write(peer: RawPeer, messages: Iterable[Sent], round_: Round, now_ms: int) -> None:
    """Write messages in one go, without waiting for anything."""
    sent = list(messages)
    answers = peer.write_many(
        RequestCode.SEND_MESSAGE_V2,
        ((header_of(message, now_ms), message.body) for message in sent),
    )
    round_.sent += sent
    round_.answers += zip(sent, answers, strict=True)


def header_of(message: Sent, now_ms: int) -> SendMessageV2:
    """The header of a send that waits for its flush."""
    text = properties.encode_text({properties.KEYS: message.key, properties.WAIT: "true"})
    return send_header(TOPIC, message.queue_id, text, now_ms)


async def load_and_kill(node: NodeProcess, number: int, chance: Random) -> Round:
    """Send until a random number of answers came, then kill the node with sends on their way."""
    round_ = Round()
    source = messages(number, chance)
    goal = chance.randrange(20, 800)
    now_ms = SystemClock().wall_ms()
    peer = await RawPeer.connect(node.broker)
    async with asyncio.timeout(60):
        while peer.sent - peer.waiting < goal:
            write(peer, islice(source, IN_FLIGHT - peer.waiting), round_, now_ms)
            oldest = next(answer for _, answer in round_.answers if not answer.done())
            await oldest
    write(peer, islice(source, BURST), round_, now_ms)
    node.kill()
    async with asyncio.timeout(60):
        await peer.closed
    round_.unanswered = round_.settle()
    return round_


async def start(node: NodeProcess, chance: Random) -> int:
    """Start a node; gives how many starts were killed before."""
    killed = 0
    while chance.random() < 0.25:
        try:
            await asyncio.to_thread(node.start, chance.randrange(20, 400))
        except NodeFailed as error:
            if error.exit_code is not None:
                raise
            killed += 1
        else:
            node.kill()
    await asyncio.to_thread(node.start)
    return killed


def check_queues(rounds: list[Round], queues: list[list[Record]]) -> None:
    """Every acknowledged message stands once, at its offset, in the order it was sent in."""
    stored: dict[str, tuple[int, Record]] = {}
    for queue_id, records in enumerate(queues):
        assert [record.queue_offset for record in records] == list(range(len(records)))
        for record in records:
            key = properties.decode(record.properties)[properties.KEYS]
            assert key not in stored, f"{key} is stored twice"
            stored[key] = (queue_id, record)
        keys = [properties.decode(record.properties)[properties.KEYS] for record in records]
        assert keys == sorted(keys), f"queue {queue_id} is out of order"
    for round_ in rounds:
        for message in round_.sent:
            offset = round_.acknowledged.get(message.key)
            if message.key not in stored:
                assert offset is None, f"{message.key} was acknowledged and is lost"
                continue
            queue_id, record = stored[message.key]
            assert queue_id == message.queue_id
            assert record.body == message.body
            assert offset is None or record.queue_offset == offset


def check_index(round_: Round, found: dict[str, list[Record]]) -> None:
    """The index leads from every acknowledged key to that message and nothing else."""
    bodies = {message.key: message.body for message in round_.sent}
    counts = Counter({key: len(found[key]) for key in round_.acknowledged})
    assert {key: count for key, count in counts.items() if count != 1} == {}
    for key in round_.acknowledged:
        assert found[key][0].body == bodies[key]


async def check(node: NodeProcess, rounds: list[Round]) -> None:
    """Every queue, and the keys of the last round."""
    peer = await RawPeer.connect(node.broker)
    queues = [await pull_queue(peer, TOPIC, queue_id) for queue_id in range(QUEUES)]
    check_queues(rounds, queues)
    last = rounds[-1]
    check_index(last, await query_keys(peer, TOPIC, list(last.acknowledged)))
    await peer.close()


async def campaign(directory: Path, seed: int, kills: int) -> Outcome:
    """Kill a node of its own so often, with sends on their way, and check after each.

    On a busy machine all may be answered before the signal: such a kill is checked, not counted.
    """
    chance = Random(seed)
    node = ProcessCluster(directory, **settings_of(chance))
    rounds: list[Round] = []
    starts_killed = 0
    await asyncio.to_thread(node.start)
    try:
        peer = await RawPeer.connect(node.broker)
        await create_topic(peer, TOPIC, QUEUES)
        await peer.close()
        while sum(round_.unanswered > 0 for round_ in rounds) < kills:
            assert len(rounds) < 2 * kills, "most kills came when no send was waiting"
            rounds.append(await load_and_kill(node, len(rounds), chance))
            starts_killed += await start(node, chance)
            await check(node, rounds)
        peer = await RawPeer.connect(node.broker)
        for round_ in rounds:
            check_index(round_, await query_keys(peer, TOPIC, list(round_.acknowledged)))
        await peer.close()
        assert node.terminate() == 0
    finally:
        node.kill()
    assert all(round_.acknowledged for round_ in rounds)
    return Outcome(
        kills,
        starts_killed,
        sum(len(round_.acknowledged) for round_ in rounds),
        sum(round_.unanswered for round_ in rounds),
    )


def run(kills: int, state: Path | None, seconds: float) -> tuple[list[Outcome], int]:
    """Campaigns until there were so many kills; gives what those that were ever noted did, and how
    many failed."""
    deadline = time.monotonic() + seconds
    lines = state.read_text().splitlines() if state is not None and state.exists() else []
    noted = {int(key): value for line in lines for key, value in json.loads(line).items()}
    outcomes: list[Outcome] = []
    failures = 0
    for seed in range(-(-kills // KILLS_A_CAMPAIGN)):
        if seed not in noted:
            if time.monotonic() > deadline:
                continue
            noted[seed] = _campaign(seed)
            if state is not None:
                with state.open("a") as file:
                    file.write(json.dumps({seed: noted[seed]}) + "\n")
        if isinstance(noted[seed], str):
            failures += 1
        else:
            outcomes.append(Outcome(*noted[seed]))
    return outcomes, failures


def _campaign(seed: int) -> tuple[int, int, int, int] | str:
    directory = Path(tempfile.mkdtemp(prefix=f"cometmq-kills-{seed}-"))
    try:
        done = asyncio.run(campaign(directory, seed, KILLS_A_CAMPAIGN))
    except Exception as error:
        traceback.print_exc()
        print(f"campaign {seed}: the store is kept in {directory}", file=sys.stderr)
        return repr(error)
    shutil.rmtree(directory)
    return done.kills, done.starts_killed, done.acknowledged, done.unanswered


def main(words: Sequence[str]) -> int:
    """The command; gives its exit code."""
    parser = argparse.ArgumentParser(prog="python -m tests.operation.kills")
    parser.add_argument("kills", type=int)
    parser.add_argument("--state", type=Path)
    parser.add_argument("--seconds", type=float, default=1e9)
    asked = parser.parse_args(words)
    outcomes, failures = run(asked.kills, asked.state, asked.seconds)
    done = sum(outcome.kills for outcome in outcomes)
    print(
        f"{done} of {asked.kills} kills and {sum(each.starts_killed for each in outcomes)} killed "
        f"starts, {sum(each.acknowledged for each in outcomes)} sends acknowledged and "
        f"{sum(each.unanswered for each in outcomes)} not, {failures} campaigns failed"
    )
    return 1 if failures else 3 if done < asked.kills else 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
