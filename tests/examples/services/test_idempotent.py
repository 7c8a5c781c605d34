"""A payment that is sent twice, and whose consumer is killed, is booked once."""

from __future__ import annotations

from pathlib import Path

import pytest

from cometmq.client.blocking import Client as BlockingClient
from cometmq.client.client import Client
from cometmq.message.model import Message
from cometmq.protocol.acl import Credentials
from cometmq.testing.cluster import Cluster, cluster_in_thread
from examples.services import idempotent
from tests.client.scripted import eventually
from tests.client.shared_broker import fresh_topic
from tests.examples.services.conftest import GRACE_S, service, terminate

COUNT = 200


def one(database: str, query: str) -> int:
    """Return the number that a query gives."""
    connection = idempotent.connect(database)
    try:
        return int(connection.execute(query).fetchone()[0])
    finally:
        connection.close()


@pytest.mark.parametrize("kind", ["sqlite", "postgres"])
async def test_each_payment_is_booked_once(
    cometmq_session_cluster: Cluster, tmp_path: Path, kind: str, request: pytest.FixtureRequest
) -> None:
    sqlite = str(tmp_path / "bank.sqlite")
    database = sqlite if kind == "sqlite" else request.getfixturevalue("postgres")
    connection = idempotent.connect(database)
    for statement in (*idempotent.TABLES, "INSERT INTO balance VALUES (0)"):
        connection.execute(statement)
    connection.commit()
    connection.close()
    namesrv = cometmq_session_cluster.namesrv
    async with Client(namesrv) as client:
        topic = await fresh_topic(client)
        payments = [Message(topic, b"%d" % n, keys=(f"p{n}",)) for n in range(COUNT)]
        await client.send_many([*payments, *payments])
        words = ("examples.services.idempotent", namesrv, topic, database)
        with service(*words) as killed:
            await eventually(
                lambda: one(database, "SELECT count(*) FROM processed") >= COUNT // 4,
                deadline_s=60,
            )
            killed.kill()
        # One more that is sent after all others, and once in each queue.
        for queue in await client.queues(topic):
            await client.send(topic, b"0", keys=[f"last-{queue.queue_id}"], queue=queue)
        with service(*words) as consumer:
            await eventually(
                lambda: one(database, "SELECT count(*) FROM processed") == COUNT + 4,
                deadline_s=60,
            )
            assert terminate(consumer) == (0, "")
    assert one(database, "SELECT cents FROM balance") == sum(range(COUNT))


def test_a_consumer_that_may_not_read_ends_the_service(tmp_path: Path) -> None:
    (tmp_path / "conf").mkdir()
    (tmp_path / "conf" / "plain_acl.yml").write_text(
        "accounts:\n- accessKey: admin-key\n  secretKey: secret-of-admin\n  admin: true\n"
    )
    with cluster_in_thread(tmp_path, aclEnable=True, rocketmqHome=str(tmp_path)) as cluster:
        admin = Credentials("admin-key", "secret-of-admin")
        with BlockingClient(cluster.namesrv, credentials=admin) as client:
            client.send("payments", b"5")
        words = ("examples.services.idempotent", cluster.namesrv, "payments", "unused")
        with service(*words) as process:
            output, _ = process.communicate(timeout=GRACE_S)
    assert process.returncode == 1
    assert "BrokerRefused" in output
