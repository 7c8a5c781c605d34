"""What speaks against a promotion, and the request that asks for one."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path
from typing import Any

import msgspec
import pytest

from cometmq.broker.config import BrokerRole
from cometmq.broker.replication.promotion import OLD_TABLES_MS, Situation, judge
from cometmq.protocol.codes import RequestCode, ResponseCode
from tests.broker.replicated import group, hurry
from tests.broker.serving import BrokerClient, running_broker
from tests.broker.test_supervisor import SLAVE, living, until_same
from tests.replication.pairs import until

CALM = Situation(
    master="10.0.0.1:10911",
    is_connected=False,
    problem="",
    registered=(),
    unheard=(),
    end=5_000,
    undispatched_bytes=0,
    reported_end=5_000,
    reported_age_ms=4_200,
    tables_age_ms=1_000,
)


def weights(**changes: Any) -> list[tuple[str, str]]:
    return [(found.weight, found.text) for found in judge(replace(CALM, **changes))]


def test_a_slave_that_has_all_is_promoted_without_a_word() -> None:
    assert [weight for weight, _ in weights()] == ["ok"] * 3
    assert (
        weights()[1][1]
        == "its log is complete up to the end that the master reported 4.2 s ago: 5,000 bytes"
    )


@pytest.mark.parametrize(
    ("changes", "weight", "text"),
    [
        ({"is_connected": True}, "refused", "the master 10.0.0.1:10911 is connected"),
        ({"registered": (("ns:1", "a:1"),)}, "refused", "name server ns:1 lists a:1 as the master"),
        ({"unheard": ("ns:1",)}, "warning", "name server ns:1 does not answer"),
        ({"problem": "they differ"}, "refused", "its log differs from the master's: they differ"),
        ({"reported_end": -1}, "warning", "the master never reported the end of its log"),
        ({"end": 4_000}, "warning", "it lacks 1,000 of the 5,000 bytes"),
        ({"tables_age_ms": -1}, "warning", "were never copied"),
        ({"tables_age_ms": OLD_TABLES_MS + 1}, "warning", "consumers may receive again"),
        ({"undispatched_bytes": 7}, "ok", "7 bytes are not in the queues yet"),
    ],
)
def test_what_speaks_against_it(changes: dict[str, Any], weight: str, text: str) -> None:
    assert any(found[0] == weight and text in found[1] for found in weights(**changes))


@pytest.fixture
def quick(monkeypatch: pytest.MonkeyPatch) -> None:
    hurry(monkeypatch)


async def ask(client: BrokerClient, **wanted: Any) -> tuple[int, dict[str, Any]]:
    head, body = await client.ask(RequestCode.PROMOTE_BROKER, msgspec.json.encode(wanted))
    return head.code, msgspec.json.decode(body) if body else {"remark": head.remark}


@pytest.mark.usefixtures("quick")
async def test_a_slave_is_promoted_once_its_master_is_gone(tmp_path: Path) -> None:
    async with group(tmp_path) as made, living(made, "a") as master:
        await (await master.connect()).send(b"kept")
        code, answer = await ask(await master.connect())
        assert code == ResponseCode.ILLEGAL_OPERATION
        assert "is ASYNC_MASTER, not a slave" in answer["remark"]
        async with living(made, "b", **SLAVE) as slave:
            await until_same(master, slave)
            admin = await slave.connect()
            await until(lambda: slave.broker.replication.part.facts()["masterConnected"] == "true")
            for wanted in ({}, {"check": True}, {"check": True, "force": True}):
                code, answer = await ask(admin, **wanted)
                assert (code, answer["begins"]) == (0, False)
            weights = [found["weight"] for found in answer["findings"]]
            assert weights.count("refused") == 2
            await until(lambda: int(slave.broker.replication.part.facts()["masterLogEnd"]) > 0)
            code, answer = await ask(admin, role="KING")
            assert (code, "neither" in answer["remark"]) == (ResponseCode.SYSTEM_ERROR, True)
            await master.stop()
            await until(lambda: slave.broker.replication.part.facts()["masterConnected"] == "false")
            before = slave.broker
            code, answer = await ask(admin, role="SYNC_MASTER")
            assert (code, answer["begins"], answer["brokerName"]) == (0, True, "broker-a")
            assert {found["weight"] for found in answer["findings"]} == {"ok"}
            await until(lambda: slave.broker is not before and bool(slave.broker.registered))
            assert slave.broker.config.broker_role is BrokerRole.SYNC_MASTER


async def test_a_broker_that_nobody_can_begin_anew_says_what_to_do(tmp_path: Path) -> None:
    async with running_broker(tmp_path, None, **SLAVE) as slave:
        code, answer = await ask(await slave.connect())
        assert code == ResponseCode.ILLEGAL_OPERATION
        assert "start it with brokerRole=ASYNC_MASTER and brokerId=0" in answer["remark"]
