"""The source against a RocketMQ 4.9.7 that wants signatures, encryption and certificates."""

from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

import pytest
import trustme
from pyspark.errors import PySparkException
from pyspark.sql import DataFrame, SparkSession

from cometmq.client.blocking import Client
from cometmq.core.errors import BrokerRefused, NotConnected
from cometmq.message.model import MessageQueue
from cometmq.spark.brokers import access, offsets
from tests.compat.anchor import JavaCluster, as_pkcs8, fetch_jars, wait_until
from tests.spark.topics import fill_all, make_topic

pytestmark = [pytest.mark.compat, pytest.mark.spark]

OPEN = "globalWhiteRemoteAddresses:\n- 127.0.0.1\naccounts: []\n"
GUARDED = """\
globalWhiteRemoteAddresses: []
accounts:
- accessKey: spark-reader
  secretKey: a-long-secret
  admin: false
  defaultTopicPerm: DENY
  defaultGroupPerm: DENY
  topicPerms:
  - Guarded=SUB
  groupPerms:
  - CID_RMQ_SYS_COMETMQ_SPARK=SUB
"""


@dataclass
class Guarded:
    """A cluster, the options that open it, and its queues."""

    options: dict[str, str]
    queues: list[MessageQueue]


@pytest.fixture(scope="module")
def guarded(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Guarded]:
    """50 messages each in two queues of topic Guarded, and one in topic Hidden."""
    folder = tmp_path_factory.mktemp("java")
    authority = trustme.CA()
    authority.cert_pem.write_to_path(folder / "ca.pem")
    for name in ("server", "reader"):
        issued = authority.issue_cert("127.0.0.1" if name == "server" else "reader.test")
        issued.cert_chain_pems[0].write_to_path(folder / f"{name}.pem")
        (folder / f"{name}.key").write_bytes(as_pkcs8(issued.private_key_pem.bytes()))
    properties = {
        "tls.config.file": str(folder / "none"),
        "tls.test.mode.enable": "false",
        "tls.server.mode": "permissive",
        "tls.server.need.client.auth": "require",
        "tls.server.authClient": "true",
        "tls.server.certPath": str(folder / "server.pem"),
        "tls.server.keyPath": str(folder / "server.key"),
        "tls.server.trustCertPath": str(folder / "ca.pem"),
    }
    home = folder / "home"
    rules = home / "conf" / "plain_acl.yml"
    rules.parent.mkdir(parents=True)
    rules.write_text(OPEN)
    java = JavaCluster(fetch_jars(), home, {"aclEnable": "true"}, properties=properties)
    with java.until_killed():
        with Client(java.namesrv) as client:
            queues = make_topic(client, "Guarded", 2)
            fill_all(client, queues, 50)
            fill_all(client, make_topic(client, "Hidden", 1), 1)
        rules.write_text(GUARDED)
        found = Guarded(
            {
                "nameservers": java.namesrv,
                "accessKey": "spark-reader",
                "secretKey": "a-long-secret",
                "useTls": "true",
                "tlsCaFile": str(folder / "ca.pem"),
                "tlsCertFile": str(folder / "reader.pem"),
                "tlsKeyFile": str(folder / "reader.key"),
            },
            queues,
        )
        wait_until(lambda: is_guarded(found), "the broker reads its rules again")
        yield found


def is_guarded(found: Guarded) -> bool:
    """Whether the account gets an answer, and nobody else."""
    return answers(found.options, found.queues) and not answers(
        without(found, "accessKey", "secretKey"), found.queues
    )


def answers(given: dict[str, str], queues: list[MessageQueue]) -> bool:
    try:
        offsets.latest(queues, access.parse(given))
    except BrokerRefused:
        return False
    return True


def without(found: Guarded, *names: str) -> dict[str, str]:
    return {name: value for name, value in found.options.items() if name not in names}


def load(spark: SparkSession, options: dict[str, str], topic: str = "Guarded") -> DataFrame:
    read = spark.read.format("rocketmq").options(**options).option("topic", topic)
    return read.schema("queue_id int, queue_offset bigint, body binary").load()


def test_who_is_known_reads(spark: SparkSession, guarded: Guarded) -> None:
    rows = load(spark, guarded.options).collect()
    assert {bytes(row.body).decode() for row in rows} == {
        f"{queue}-{at}" for queue in range(2) for at in range(50)
    }


def test_an_account_reads_what_it_may(spark: SparkSession, guarded: Guarded) -> None:
    with pytest.raises(PySparkException, match="set options accessKey and secretKey") as caught:
        load(spark, guarded.options, "Hidden").collect()
    assert "a-long-secret" not in str(caught.value)


@pytest.mark.parametrize("wrong", [{"secretKey": "another-secret"}, {"accessKey": "somebody-else"}])
def test_a_wrong_key_is_refused(guarded: Guarded, wrong: dict[str, str]) -> None:
    with pytest.raises(BrokerRefused, match="accessKey and secretKey") as caught:
        offsets.latest(guarded.queues, access.parse({**guarded.options, **wrong}))
    assert "another-secret" not in str(caught.value)


def test_no_key_is_refused(guarded: Guarded) -> None:
    unsigned = access.parse(without(guarded, "accessKey", "secretKey"))
    with pytest.raises(BrokerRefused, match="accessKey and secretKey"):
        offsets.latest(guarded.queues, unsigned)


def test_a_reader_without_a_certificate_is_hung_up_on(guarded: Guarded) -> None:
    nameless = access.parse(without(guarded, "tlsCertFile", "tlsKeyFile"))
    with pytest.raises(NotConnected):
        offsets.latest(guarded.queues, nameless)


def test_a_stranger_is_not_trusted(guarded: Guarded, tmp_path: Path) -> None:
    other = tmp_path / "other.pem"
    trustme.CA().cert_pem.write_to_path(other)
    with pytest.raises(NotConnected, match="certificate verify failed"):
        offsets.latest(guarded.queues, access.parse({**guarded.options, "tlsCaFile": str(other)}))
