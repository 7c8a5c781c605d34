"""Mutated requests of every code on all ports of a node with accounts: nothing that is not allowed.

    python -m tests.hostile.guarded 1000000 [--seed N] [--state FILE] [--directory NEW]

The requests of all ports together are so many, in rounds of ROUND on a new node each. With
`--state` the rounds that were done are noted there, and the next run goes on after them.

Requests come without a signature, with a wrong one, or signed by an account that may use one topic
and one group; some are changed after they were signed. Before and after each round an operator
reads topics, groups, offsets, settings and accounts, and how many messages each topic has. What the
account may not change must be as before. The node's home and working directory must stay empty.
"""

import argparse
import asyncio
import json
import re
import sys
import tempfile
import time
from collections.abc import Callable, Mapping
from contextlib import suppress
from dataclasses import dataclass, field
from pathlib import Path
from random import Random
from typing import Any, Self

import uvloop

from cometmq.admin.node import VIP_DISTANCE, NodeProcess, lasting_port
from cometmq.message.names import DLQ_PREFIX, RETRY_PREFIX, is_system_topic
from cometmq.protocol import headers as h
from cometmq.protocol.acl import Credentials, signed
from cometmq.protocol.codes import RequestCode, ResponseCode
from cometmq.protocol.fastjson import parse_json
from cometmq.protocol.fields import to_ext
from cometmq.protocol.registry import Side
from tests.architecture.rules import SRC
from tests.hostile import flood, frames
from tests.hostile.strangers import FalseSlave, RemotingStranger, mutations
from tests.operation.raw import Pending, RawPeer, create_topic, pull_queue

ROUND = 50_000
OPERATOR = Credentials("operator-key", "operator-secret-9d2f")
ALLOWED = Credentials("allowed-key", "allowed-secret-51cb")
WRONG = Credentials("allowed-key", "not-the-secret-of-it")
#: The topic and the group that ALLOWED may use; most captured requests are about them.
TOPIC, GROUP = flood.GOLDEN_TOPIC, "golden-group"
#: Topics that requests of ALLOWED may create or write to.
MAY_APPEAR = frozenset({TOPIC, RETRY_PREFIX + GROUP, DLQ_PREFIX + GROUP})
#: Shares of the ports in a round, of 20.
SHARES = {"namesrv": 5, "broker": 8, "fast": 5, "slave": 2}
ACCOUNTS = f"""\
globalWhiteRemoteAddresses: []
accounts:
  - accessKey: {OPERATOR.access_key}
    secretKey: {OPERATOR.secret_key}
    admin: true
  - accessKey: {ALLOWED.access_key}
    secretKey: {ALLOWED.secret_key}
    defaultTopicPerm: DENY
    defaultGroupPerm: DENY
    topicPerms:
      - {TOPIC}=PUB|SUB
    groupPerms:
      - {GROUP}=SUB
"""
#: Anonymous memory may differ by so much between a warm node and the same node after a round.
MEMORY_GROWTH_MAX_KB = 48 * 1024
SETTLE_S = 30
#: The machine may be shared, and the flood itself takes one of its cores.
WAIT_MAX_MS = 3_000.0


class SigningPeer(RawPeer):
    """A connection whose requests the operator signs."""

    @classmethod
    async def connect(cls, address: str) -> Self:
        return await super().connect(address)

    def write(self, code: RequestCode, header: h.Header, body: bytes = b"") -> Pending:
        assert self._transport is not None
        waiter: Pending = asyncio.get_running_loop().create_future()
        _, head = self.connection.encode_request(
            code, header, waiter, 0, body_bytes=len(body),
            extra=signed(OPERATOR, to_ext(header), body),
        )  # fmt: skip
        self.sent += 1
        self._transport.write(head + body)
        return waiter

    async def read(self, code: RequestCode, header: h.Header | None = None) -> bytes:
        """The body of a successful answer."""
        answer = await self.ask(code, header or h.NoFields())
        assert answer.code == ResponseCode.SUCCESS, (code, answer.code, answer.remark)
        return answer.body


def requests(side: Side, kind: str, chance: Random) -> Callable[[], bytes]:
    """Gives one request after another: mutated ones of every code, half of them unsigned."""
    whole = frames.requests_of(side, kind)
    whole += 8 * frames.changing_frames(side)

    def one() -> bytes:
        kind = chance.randrange(20)
        if kind == 0:
            return chance.choice(whole)
        if kind == 1:
            return frames.signed_frame(chance.choice(whole), ALLOWED)
        if kind == 2:
            # Changed after it was signed.
            return frames.mutated([frames.signed_frame(chance.choice(whole), ALLOWED)], chance)
        frame = frames.mutated(whole, chance)
        if kind < 10:
            return frame
        return frames.signed_frame(frame, WRONG if kind < 12 else ALLOWED)

    return one


@dataclass(frozen=True, slots=True)
class State:
    """What an operator sees of a node."""

    topics: Mapping[str, Any]
    groups: Mapping[str, Any]
    offsets: Mapping[str, Any]
    messages: Mapping[str, int]
    #: Settings and files, by what they are.
    texts: Mapping[str, bytes]


async def state_of(node: NodeProcess) -> State:
    """Read the state of a node."""
    peer = await SigningPeer.connect(node.broker)
    names = await SigningPeer.connect(node.namesrv)
    try:
        read: Callable[[bytes], Any] = parse_json
        topics = read(await peer.read(RequestCode.GET_ALL_TOPIC_CONFIG))["topicConfigTable"]
        groups = read(await peer.read(RequestCode.GET_ALL_SUBSCRIPTIONGROUP_CONFIG))
        offsets = read(await peer.read(RequestCode.GET_ALL_CONSUMER_OFFSET))
        messages = {}
        for topic, config in topics.items():
            messages[topic] = 0
            for queue in range(max(config["writeQueueNums"], config["readQueueNums"])):
                answer = await peer.ask(RequestCode.GET_MAX_OFFSET, h.TopicQueue(topic, queue))
                messages[topic] += int(answer.ext["offset"])
        texts = {
            "settings of the broker": await peer.read(RequestCode.GET_BROKER_CONFIG),
            "settings of the name server": await names.read(RequestCode.GET_NAMESRV_CONFIG),
            "accounts": await peer.read(RequestCode.GET_BROKER_CLUSTER_ACL_CONFIG),
        }
        for path in sorted((node.store / "conf").rglob("*")):
            if path.is_file():
                texts[str(path.relative_to(node.store))] = path.read_bytes()
        keys = node.store / "config" / "kvConfig.json"
        texts["keys of the name server"] = keys.read_bytes() if keys.exists() else b""
        return State(topics, groups["subscriptionGroupTable"], offsets["offsetTable"], messages,
                     texts)  # fmt: skip
    finally:
        await peer.close()
        await names.close()


def effects(before: State, after: State) -> list[str]:
    """What differs though ALLOWED may not change it."""
    found = [
        f"{what} changed: {after.texts.get(what, b'')[:400]!r}"
        for what in before.texts.keys() | after.texts.keys()
        if before.texts.get(what) != after.texts.get(what)
    ]
    for kind, old, new, may in (
        ("topic", before.topics, after.topics, MAY_APPEAR),
        ("group", before.groups, after.groups, {GROUP}),
    ):
        for name in old.keys() | new.keys():
            appeared = name not in old and name in may
            if old.get(name) != new.get(name) and not appeared:
                found.append(f"{kind} {name!r} was {old.get(name)}, is {new.get(name)}")
    for key in before.offsets.keys() | after.offsets.keys():
        topic, _, group = key.partition("@")
        allowed = group == GROUP and topic in MAY_APPEAR
        if before.offsets.get(key) != after.offsets.get(key) and not allowed:
            found.append(f"offsets of {key!r} are {after.offsets.get(key)}")
    for topic, count in after.messages.items():
        allowed = topic in MAY_APPEAR or topic == flood.TOPIC or is_system_topic(topic)
        if count != before.messages.get(topic, 0) and not allowed:
            found.append(f"topic {topic!r} has {count} messages")
    return found


async def flood_ports(host: str, namesrv: int, broker: int, count: int, seed: str) -> None:
    """Send `count` requests to the four ports together."""
    strangers: list[RemotingStranger | FalseSlave] = []
    ports = {
        "namesrv": (namesrv, Side.NAMESRV),
        "broker": (broker, Side.BROKER),
        "fast": (broker - VIP_DISTANCE, Side.BROKER),
    }
    for name, share in SHARES.items():
        chance = Random(f"{seed} {name}")
        number = max(count * share // 20, 1)
        if name == "slave":
            one = mutations(frames.golden_frames(), chance)
            strangers.append(FalseSlave((host, broker + 1), one, number, chance))
        else:
            port, side = ports[name]
            one = requests(side, "namesrv" if name == "namesrv" else "broker", chance)
            strangers.append(RemotingStranger((host, port), one, number, chance, guarded=True))
    async with asyncio.TaskGroup() as group:
        for stranger in strangers:
            group.create_task(stranger.run())


@dataclass(slots=True)
class Report:
    """What a round did, and what is wrong."""

    requests: int
    seconds: float = 0.0
    probes: int = 0
    longest_wait_ms: float = 0.0
    memory_before_kb: int = 0
    memory_after_kb: int = 0
    log_bytes: int = 0
    written: int = 0
    problems: list[str] = field(default_factory=list)

    def check_log(self, log: str) -> None:
        """Note errors in a log, secrets in it, and a length over its bound."""
        self.log_bytes = len(log)
        if self.log_bytes > flood.LOG_MAX_BYTES_A_MINUTE * (1 + self.seconds / 60):
            self.problems.append(f"{self.log_bytes} bytes of log in {self.seconds:.0f} s")
        errors = [line for line in log.splitlines() if flood.is_error(line)]
        if errors:
            self.problems.append(f"{len(errors)} errors in the log, the first: {errors[0]}")
        for secret in (OPERATOR.secret_key, ALLOWED.secret_key):
            if secret in log:
                self.problems.append("a secret is in the log")


async def round_of(directory: Path, count: int, seed: str, wait_max_ms: float) -> Report:
    """Send `count` requests to a new node in an empty directory, and look for what they did."""
    report = Report(count)
    sandbox = directory / "home"
    sandbox.mkdir(parents=True)
    node = guarded_node(directory, sandbox)
    node.start()
    try:
        peer = await SigningPeer.connect(node.broker)
        await create_topic(peer, flood.TOPIC, 1)
        await create_topic(peer, TOPIC, 4)
        probe = flood.Probe(peer)
        await _flooded(node, 2_000, f"{seed} warm", probe)
        before = await state_of(node)
        report.memory_before_kb = anonymous_kb(node)
        begin = time.monotonic()
        probe.longest_ms = 0.0
        await _flooded(node, count, seed, probe)
        report.seconds = time.monotonic() - begin
        report.longest_wait_ms, report.probes = probe.longest_ms, len(probe.sent)
        await _settled(node, report)
        after = await state_of(node)
        report.written = after.messages[TOPIC] - before.messages[TOPIC]
        report.problems += effects(before, after)
        await _compare_messages(peer, probe, report)
        await peer.close()
        report.check_log(node.log_path.read_text(errors="replace"))
        assert node.terminate() == 0, node.log_tail()
        flood.verify(node.store)
        node.start()
        again = await state_of(node)
        report.problems += [f"after a restart: {each}" for each in effects(after, again)]
        assert node.terminate() == 0, node.log_tail()
    finally:
        node.kill()
    if strays := [*sandbox.rglob("*")]:
        report.problems.append(f"files outside the store: {strays[:5]}")
    if others := set(flood.names_in(directory)) - {"store", "home", node.log_path.name}:
        report.problems.append(f"files outside the store: {others}")
    if report.longest_wait_ms > wait_max_ms:
        report.problems.append(f"another client waited {report.longest_wait_ms:.0f} ms")
    return report


def guarded_node(directory: Path, sandbox: Path) -> NodeProcess:
    """A node with ACCOUNTS that does not run yet; its home and working directory are `sandbox`."""
    store = directory / "store"
    (store / "conf").mkdir(parents=True)
    (store / "conf" / "plain_acl.yml").write_text(ACCOUNTS)
    settings = {
        "mappedFileSizeCommitLog": str(16 << 20),
        "mappedFileSizeConsumeQueue": "60000",
        "aclEnable": "true",
    }
    places = [f"HOME={sandbox}", f"TMPDIR={sandbox}", f"PYTHONPATH={SRC}"]
    prefix = ["env", f"--chdir={sandbox}", *places]
    port = lasting_port(VIP_DISTANCE)
    # The strangers send to the port after it, which must be the node's too.
    settings["haListenPort"] = str(port + 1)
    return NodeProcess(
        store, settings=settings, prefix=prefix, broker_port=port,
        namesrv_port=lasting_port(),
    )  # fmt: skip


async def _settled(node: NodeProcess, report: Report) -> None:
    deadline = time.monotonic() + SETTLE_S
    while True:
        report.memory_after_kb = anonymous_kb(node)
        grown_kb = report.memory_after_kb - report.memory_before_kb
        if grown_kb <= MEMORY_GROWTH_MAX_KB:
            return
        if time.monotonic() > deadline:
            report.problems.append(f"memory grew by {grown_kb} KB")
            return
        await asyncio.sleep(0.2)


async def _compare_messages(peer: RawPeer, probe: flood.Probe, report: Report) -> None:
    stored = [bytes(each.body) for each in await pull_queue(peer, flood.TOPIC, 0)]
    if stored != probe.sent:
        report.problems.append(f"{len(stored)} messages of the probe, {len(probe.sent)} were sent")


async def _flooded(node: NodeProcess, count: int, seed: str, probe: flood.Probe) -> None:
    host, _, broker = node.broker.rpartition(":")
    namesrv = node.namesrv.rpartition(":")[2]
    words = ["-m", "tests.hostile.guarded", str(count), "--at", host, namesrv, broker]
    process = await asyncio.create_subprocess_exec(sys.executable, *words, "--seed", seed)
    try:
        while process.returncode is None:
            await probe.once()
            with suppress(TimeoutError):
                await asyncio.wait_for(process.wait(), 0.02)
        assert process.returncode == 0, "a stranger was not answered"
    finally:
        if process.returncode is None:
            process.kill()
            await process.wait()


def anonymous_kb(node: NodeProcess) -> int:
    """Memory of a node's process that is not of files."""
    assert node.process is not None
    found = re.search(r"RssAnon:\s+(\d+)", Path(f"/proc/{node.process.pid}/status").read_text())
    assert found
    return int(found[1])


def main(words: list[str]) -> int:
    """Run the rounds that are left, or flood the ports given; 1 when something is wrong."""
    parser = argparse.ArgumentParser(prog="tests.hostile.guarded")
    parser.add_argument("requests", type=int, help="requests on all ports together")
    parser.add_argument("--seed", default="1")
    parser.add_argument("--wait-max-ms", type=float, default=WAIT_MAX_MS)
    parser.add_argument("--state", type=Path, help="file that notes the rounds that were done")
    parser.add_argument("--at", nargs=3, metavar=("HOST", "NAMESRV", "BROKER"))
    options = parser.parse_args(words)
    if options.at:
        host, namesrv, broker = options.at
        flood_all = flood_ports(host, int(namesrv), int(broker), options.requests, options.seed)
        uvloop.run(flood_all)
        return 0
    done: list[dict[str, Any]] = []
    if options.state and options.state.exists():
        done = [json.loads(line) for line in options.state.read_text().splitlines()]
    bad = [each for each in done if each["problems"]]
    total = sum(each["requests"] for each in done)
    while total < options.requests:
        seed = f"{options.seed}/{len(done)}"
        count = min(ROUND, options.requests - total)
        with tempfile.TemporaryDirectory(prefix="cometmq-guarded-") as name:
            try:
                report = asyncio.run(round_of(Path(name), count, seed, options.wait_max_ms))
            except (AssertionError, OSError) as error:
                report = Report(count, problems=[f"{type(error).__name__}: {error}"])
        entry = {"seed": seed, **{name: getattr(report, name) for name in Report.__slots__}}
        done.append(entry)
        total += count
        bad += [entry] if report.problems else []
        print(json.dumps(entry), flush=True)
        if options.state:
            with options.state.open("a") as state:
                state.write(json.dumps(entry) + "\n")
    print(f"{total} requests in {len(done)} rounds, {len(bad)} with problems")
    return 1 if bad else 0


if __name__ == "__main__":
    raise SystemExit(main(sys.argv[1:]))
