"""Brokers are asked together, and what one of them does not answer is named."""

from __future__ import annotations

import asyncio
import json
import socket
import tarfile
from collections.abc import AsyncIterator, Awaitable, Sequence
from contextlib import AsyncExitStack
from pathlib import Path
from typing import TypeVar

import pytest

from cometmq.admin.api import Admin, Broker, Unread
from cometmq.admin.bundle import write_bundle
from cometmq.admin.groups import Groups
from cometmq.admin.servers import Servers
from cometmq.broker.topics.registration import BrokerPlace
from cometmq.cli.main import main
from cometmq.client.client import Client
from cometmq.core.errors import BrokerRefused, RequestTimedOut
from cometmq.protocol.bodies import SubscriptionGroupConfig
from tests.broker.replicated import group
from tests.broker.test_supervisor import living
from tests.broker.topics.test_registration import Broker as Registered

T = TypeVar("T")
SILENT = ("s1", "s2", "s3")
#: A busy machine answers within it.
TIMEOUT_MS = 3_000


@pytest.fixture
async def admin(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> AsyncIterator[Admin]:
    """A cluster of a broker that answers and three that do not, all with topic t; group g has
    consumed it."""
    monkeypatch.setattr("cometmq.admin.api._TIMEOUT_MS", TIMEOUT_MS)
    async with AsyncExitStack() as stack:
        made = await stack.enter_async_context(group(tmp_path))
        await stack.enter_async_context(living(made, "a", brokerName="a"))
        quick = Client(made.namesrv, request_timeout_ms=TIMEOUT_MS)
        client = await stack.enter_async_context(quick)
        admin = Admin(client.session)
        await admin.create_topic("t", queues=1)
        await admin.update_group(SubscriptionGroupConfig("g"))
        sent = await client.send("t", b"")
        await admin.commit_group_offsets("g", {sent.queue: 0})
        for name in SILENT:
            listener = stack.enter_context(socket.create_server(("127.0.0.1", 0)))
            address = f"127.0.0.1:{listener.getsockname()[1]}"
            registered = Registered(made.namesrv)
            stack.push_async_callback(registered.close)
            place = BrokerPlace("DefaultCluster", name, 0, address, address)
            await registered.registration.start(place, registered)
        yield admin


async def soon(call: Awaitable[T]) -> T:
    """Return the result of a call; asking one broker after the other would take three timeouts."""
    async with asyncio.timeout(2.5 * TIMEOUT_MS / 1000):
        return await call


async def test_silent_brokers_cost_one_timeout_and_are_named(admin: Admin) -> None:
    groups, servers, unread = Groups(admin), Servers(admin), list[Unread]()
    progress = await soon(admin.consumer_progress("g", unread=unread))
    assert [each.broker_offset for each in progress.values()] == [1]
    assert [each.broker.name for each in unread] == [*SILENT]
    assert all(isinstance(each.error, RequestTimedOut) for each in unread)
    # Those that could not be reached are not asked again.
    began = admin.session.clock.monotonic_ms()
    assert "g" in await groups.names(unread=unread)
    assert [row.lag for row in await groups.summaries(["g"], unread=unread)] == [1]
    assert (await groups.progress("g", unread=unread)).lag == 1
    assert await admin.all_connections("g", unread=unread) == {}
    assert [each.server for each in await servers.broker_traffic(unread=unread)] == ["a"]
    assert admin.session.clock.monotonic_ms() - began < TIMEOUT_MS
    assert len(unread) == len(SILENT)
    # Access control is off at the one that answers.
    assert not await servers.accounts(unread=unread)
    assert not await servers.acl_versions(unread=unread)
    assert {each.broker.name for each in unread} == {"a", *SILENT}


async def test_without_a_list_the_whole_answer_is_needed(admin: Admin) -> None:
    groups, servers = Groups(admin), Servers(admin)
    calls = (
        admin.consumer_progress("g"),
        admin.topic_stats("t"),
        admin.groups_of("t"),
        admin.consumer_connections("g"),
        admin.messages_by_key("t", "k"),
        admin.knows_group("nobody"),
        admin.system_topics(),
        admin.consumers.time_span("g", "t"),
        groups.names(),
        groups.configs(),
        groups.producers("p"),
        servers.topic_traffic("t"),
    )
    for ended in await soon(asyncio.gather(*calls, return_exceptions=True)):
        assert isinstance(ended, RequestTimedOut), ended
    assert await soon(admin.knows_group("g"))


async def test_a_change_reaches_the_brokers_that_answer(admin: Admin) -> None:
    with pytest.raises(RequestTimedOut):
        await soon(admin.update_group(SubscriptionGroupConfig("new")))
    assert "new" in await Groups(admin).names(unread=[])
    outcomes = await soon(Servers(admin).set_topic_perm("t", 4))
    assert [(each.server, each.error is None) for each in outcomes] == [
        ("a", True),
        ("s1", False),
        ("s2", False),
        ("s3", False),
    ]


async def test_a_refusal_for_one_group_leaves_the_other_groups(admin: Admin) -> None:
    (broker, *_), unread = await admin.brokers(), list[Unread]()

    async def ask(group: str) -> Sequence[str]:
        async def answer(each: Broker) -> str:
            if group == "denied":
                raise BrokerRefused(each.address, 1, 16, "no")
            return group

        return [*(await admin.ask_together([broker], answer, unread)).values()]

    assert [await ask("denied"), await ask("g"), await ask("denied")] == [[], ["g"], []]
    assert [each.broker for each in unread] == [broker]


async def test_a_bundle_has_what_the_others_answer(admin: Admin, tmp_path: Path) -> None:
    made = await write_bundle(admin, tmp_path / "b.tar.gz")
    gaps = {gap.what.partition(" at ")[0] for gap in made.gaps}
    assert {"queues", "groups"} <= gaps
    with tarfile.open(made.path) as archive:
        (name,) = [each for each in archive.getnames() if each.endswith("groups.json")]
        found = archive.extractfile(name)
        assert found is not None
        assert json.load(found)["g"]["lag"] == 1


async def test_the_command_line_shows_what_there_is(
    admin: Admin, capsys: pytest.CaptureFixture[str]
) -> None:
    (name_server,) = admin.session.config.name_servers
    for words in (
        ["group", "lag", "g"],
        ["group", "lag", "g", "--topic", "t"],
        ["group", "show", "g"],
        ["topic", "show", "t"],
        ["topic", "list"],
    ):
        code = await asyncio.to_thread(main, [*words, "-n", name_server])
        told = capsys.readouterr()
        assert code == 1
        assert told.out.strip()
        assert "without what these brokers have: s1 at 127.0.0.1:" in told.err


async def test_settings_of_the_servers_that_answer_are_shown(
    admin: Admin, capsys: pytest.CaptureFixture[str]
) -> None:
    (name_server,) = admin.session.config.name_servers
    where = ["-n", name_server]
    assert await asyncio.to_thread(main, ["config", "get", "brokerName", *where]) == 1
    told = capsys.readouterr()
    assert told.out.split()[-2:] == ["brokerName", "a"]
    assert "without what these have: s1 at 127.0.0.1:" in told.err
    began = admin.session.clock.monotonic_ms()
    assert await asyncio.to_thread(main, ["broker", "list", *where]) == 1
    # The command has the usual timeout of 3 s: one after the other they would take three.
    assert admin.session.clock.monotonic_ms() - began < 6_000
    assert capsys.readouterr().out.count("DefaultCluster") == 1 + len(SILENT)
    assert await asyncio.to_thread(main, ["broker", "show", "s1", *where]) == 1
    assert "no answer" in capsys.readouterr().err


async def test_members_are_asked_through_a_master_that_answers(
    admin: Admin, monkeypatch: pytest.MonkeyPatch
) -> None:
    masters = sorted(await admin.masters_of("t"), key=lambda each: each.name == "a")

    async def found(_: str) -> list[Broker]:
        return masters[-2:]

    monkeypatch.setattr(admin.consumers, "_masters", found)
    monkeypatch.setattr("cometmq.admin.api._RELAY_TIMEOUT_MS", TIMEOUT_MS)
    for call in (admin.consumers.positions("g", "t"), admin.consumers.running_info("g", "c")):
        with pytest.raises(BrokerRefused):
            await call
