"""Avro with a real schema registry: Apicurio, which answers the clients of Confluent's."""

import io
import json
import shutil
import subprocess
import tarfile
import tempfile
from collections.abc import Iterator
from pathlib import Path
from typing import Any
from urllib.error import URLError
from urllib.request import Request, urlopen

import fastavro
import pytest
from pyspark.sql import SparkSession

from cometmq.client.blocking import Client
from cometmq.spark.values.registry import Registry, SchemaUnknown
from cometmq.testing.cluster import Cluster
from tests.compat.anchor import JavaServer, cache_dir, free_port, wait_until
from tests.packaging.tools import place
from tests.spark.topics import make_topic

pytestmark = [pytest.mark.compat, pytest.mark.spark]

VERSION = "2.6.13.Final"
NAME = f"apicurio-registry-app-{VERSION}"
ARTIFACT = f"io.apicurio:apicurio-registry-app:{VERSION}:tar.gz:all"
FETCH_S = 600
ANSWER_S = 10
SUBJECT = "orders-value"
OLD = {"type": "record", "name": "Order", "fields": [{"name": "id", "type": "int"}]}
NOTE = {"name": "note", "type": "string", "default": "none"}
NEW = {"type": "record", "name": "Order", "fields": [{"name": "id", "type": "long"}, NOTE]}


@pytest.fixture(scope="module")
def registry(tmp_path_factory: pytest.TempPathFactory) -> Iterator[str]:
    """The address of a registry's API; its schemas are in memory."""
    port = free_port()
    folder = tmp_path_factory.mktemp("registry")
    settings = {
        "java.io.tmpdir": folder,
        "quarkus.http.host": "127.0.0.1",
        "quarkus.http.port": port,
    }
    command = ["java", "-XX:TieredStopAtLevel=1", "-XX:+UseSerialGC"]
    command += [f"-D{key}={value}" for key, value in settings.items()]
    command += ["-jar", str(fetched() / f"{NAME}-runner.jar")]
    url = f"http://127.0.0.1:{port}/apis/ccompat/v7"
    server = JavaServer("registry", command, folder, port)
    server.start()
    try:
        wait_until(lambda: answers(url), f"a registry: {server.output()}")
        yield url
    finally:
        server.stop()


def fetched() -> Path:
    """The folder with the registry's program; fetches it the first time."""
    target = cache_dir() / NAME
    if target.exists():
        return target
    target.parent.mkdir(parents=True, exist_ok=True)
    fresh = Path(tempfile.mkdtemp(dir=target.parent))
    try:
        words = ["mvn", "-q", "-B", "dependency:copy", f"-Dartifact={ARTIFACT}"]
        subprocess.run(
            [*words, f"-DoutputDirectory={fresh}"], check=True, timeout=FETCH_S, cwd=fresh
        )
        packed = fresh / f"{NAME}-all.tar.gz"
        with tarfile.open(packed) as files:
            files.extractall(fresh, filter="data")
        packed.unlink()
        place(fresh, target)
    finally:
        shutil.rmtree(fresh, ignore_errors=True)
    return target


def answers(url: str) -> bool:
    """Whether the registry answers."""
    try:
        with urlopen(f"{url}/subjects", timeout=ANSWER_S):
            return True
    except URLError:
        return False


def register(url: str, schema: dict[str, Any]) -> int:
    """Add a version to the subject; gives the schema's id."""
    request = Request(
        f"{url}/subjects/{SUBJECT}/versions",
        json.dumps({"schema": json.dumps(schema)}).encode(),
        {"Content-Type": "application/vnd.schemaregistry.v1+json"},
    )
    with urlopen(request, timeout=ANSWER_S) as answer:
        found: int = json.load(answer)["id"]
    return found


def body(schema_id: int, value: dict[str, Any], schema: dict[str, Any]) -> bytes:
    """A body as serializers with a registry write it, encoded by fastavro."""
    raw = io.BytesIO()
    fastavro.schemaless_writer(raw, fastavro.parse_schema(schema), value)
    return b"\0" + schema_id.to_bytes(4, "big") + raw.getvalue()


def test_a_topic_is_read_by_the_schemas_of_a_registry(
    spark: SparkSession, cometmq_session_cluster: Cluster, registry: str
) -> None:
    old, new = register(registry, OLD), register(registry, NEW)
    assert old != new
    unknown = max(old, new) + 1_000
    namesrv, topic = cometmq_session_cluster.namesrv, "RegisteredAvro"
    with Client(namesrv) as client:
        (queue,) = make_topic(client, topic, 1)
        for sent in (
            body(old, {"id": 3}, OLD),
            body(new, {"id": 4, "note": "x"}, NEW),
            body(unknown, {"id": 5}, OLD),
        ):
            client.send(topic, sent, queue=queue)
    given = {
        "nameservers": namesrv, "topic": topic, "startingOffsets": "earliest",
        "valueFormat": "avro", "valueRegistry": registry, "valueSubject": SUBJECT,
    }  # fmt: skip
    rows = spark.read.format("rocketmq").options(**given).load().orderBy("queue_offset").collect()
    assert [row.value and row.value.asDict() for row in rows] == [
        {"id": 3, "note": "none"},
        {"id": 4, "note": "x"},
        None,
    ]
    assert [row.undecodable for row in rows[:2]] == [None, None]
    assert f"has no schema /schemas/ids/{unknown}" in rows[2].undecodable


def test_an_unknown_subject_is_named(registry: str) -> None:
    with pytest.raises(SchemaUnknown, match="no-such-subject"):
        Registry(registry).newest("no-such-subject")
