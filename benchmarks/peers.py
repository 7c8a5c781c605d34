"""Brokers with other protocols: one node of Apache Kafka, and NATS with JetStream.

Both are downloaded once, into build/bench: Kafka's jars from Maven Central, nats-server from the Go
module proxy. Each class has the few requests that a benchmark needs besides the load.
"""

from __future__ import annotations

import base64
import json
import os
import socket
import subprocess
import uuid
from abc import ABC, abstractmethod
from collections.abc import Mapping
from pathlib import Path
from struct import Struct
from typing import Final

from benchmarks.loading import BUILD, HERE, BenchmarkFailed, need_tools
from tests.compat.anchor import answers, free_port, wait_until

KAFKA_VERSION: Final = "3.9.1"
NATS_VERSION: Final = "v2.11.9"
#: The same options as in Kafka's own start script.
KAFKA_JVM: Final = (
    *("-Xmx1g", "-Xms1g", "-server", "-XX:+UseG1GC", "-XX:MaxGCPauseMillis=20"),
    *("-XX:InitiatingHeapOccupancyPercent=35", "-XX:+ExplicitGCInvokesConcurrent"),
    "-Djava.awt.headless=true",
)
PARTITIONS: Final = 8
WAIT_S: Final = 60.0
_REQUEST_S: Final = 20.0
_I16, _I32, _I64 = Struct(">h"), Struct(">i"), Struct(">q")


def fetch_kafka() -> Path:
    """Return the folder with Kafka's jars. Raises ToolMissing, CalledProcessError."""
    target = BUILD / f"kafka-{KAFKA_VERSION}"
    if not target.is_dir():
        need_tools("java", "mvn")
        fresh = target.with_name(f"{target.name}.{os.getpid()}")
        words = ["mvn", "-q", "-B", "-f", str(HERE / "kafka" / "pom.xml")]
        words += [f"-Dkafka.version={KAFKA_VERSION}", "dependency:copy-dependencies"]
        subprocess.run([*words, f"-DoutputDirectory={fresh}"], check=True, stdout=2)
        fresh.rename(target)
    return target


def fetch_nats() -> Path:
    """Return the path of the built nats-server. Raises ToolMissing, CalledProcessError."""
    folder = BUILD / f"nats-{NATS_VERSION}"
    if not (folder / "nats-server").is_file():
        need_tools("go")
        folder.mkdir(parents=True, exist_ok=True)
        module = f"github.com/nats-io/nats-server/v2@{NATS_VERSION}"
        env = os.environ | {"GOBIN": str(folder)}
        # Outside of any module, so that no go.mod is changed.
        subprocess.run(["go", "install", module], check=True, env=env, stdout=2, cwd=folder)
    return folder / "nats-server"


class _Process(ABC):
    """A server process with its folder. Subclasses define the command and the requests."""

    def __init__(self, home: Path) -> None:
        self.home = home
        self.port = free_port()
        self.process: subprocess.Popen[bytes] | None = None
        home.mkdir(parents=True)

    @property
    def pid(self) -> int:
        assert self.process is not None
        return self.process.pid

    @abstractmethod
    def command(self) -> list[str]:
        """The command that starts the process."""

    def is_ready(self) -> bool:
        return answers(self.port)

    def start(self) -> None:
        """Start the process, and return when it serves. Raises AnchorFailed, BenchmarkFailed."""
        with (self.home / "output").open("wb") as output:
            self.process = subprocess.Popen(
                self.command(),
                stdin=subprocess.DEVNULL,
                stdout=output,
                stderr=subprocess.STDOUT,
                start_new_session=True,
            )
        wait_until(self._is_up, type(self).__name__, WAIT_S)

    def _is_up(self) -> bool:
        assert self.process is not None
        if self.process.poll() is not None:
            tail = (self.home / "output").read_bytes()[-1000:].decode(errors="replace")
            raise BenchmarkFailed(f"{type(self).__name__} ended: {tail}")
        return self.is_ready()

    def kill(self) -> None:
        """Kill the process."""
        if self.process is not None:
            self.process.kill()
            self.process.wait()
            self.process = None


class KafkaNode(_Process):
    """One node of Apache Kafka that is broker and controller (KRaft).

    It has Kafka's default settings: a message is acknowledged once it is in the page cache. With
    ``is_synced`` each batch is synced first (``log.flush.interval.messages=1``).
    """

    def __init__(self, home: Path, *, is_synced: bool = False) -> None:
        self._jars = fetch_kafka()
        super().__init__(home)
        controller = free_port()
        self._config = home / "server.properties"
        lines: dict[str, object] = {
            "process.roles": "broker,controller",
            "node.id": 1,
            "controller.quorum.voters": f"1@127.0.0.1:{controller}",
            "listeners": f"PLAINTEXT://127.0.0.1:{self.port},CONTROLLER://127.0.0.1:{controller}",
            "advertised.listeners": f"PLAINTEXT://127.0.0.1:{self.port}",
            "controller.listener.names": "CONTROLLER",
            "listener.security.protocol.map": "CONTROLLER:PLAINTEXT,PLAINTEXT:PLAINTEXT",
            "log.dirs": home / "data",
            "num.partitions": PARTITIONS,
            "offsets.topic.replication.factor": 1,
            "transaction.state.log.replication.factor": 1,
            "transaction.state.log.min.isr": 1,
            "log.segment.delete.delay.ms": 1000,
        }
        if is_synced:
            lines["log.flush.interval.messages"] = 1
        self._config.write_text("".join(f"{key}={value}\n" for key, value in lines.items()))
        self._format()

    def _java(self, *words: str) -> list[str]:
        return ["java", *KAFKA_JVM, "-cp", f"{self._jars}/*", *words]

    def _format(self) -> None:
        cluster = base64.urlsafe_b64encode(uuid.uuid4().bytes).decode().rstrip("=")
        words = ("kafka.tools.StorageTool", "format", "-t", cluster, "-c", str(self._config))
        done = subprocess.run(self._java(*words), capture_output=True, text=True)
        if done.returncode:
            raise BenchmarkFailed(f"Kafka's storage: {(done.stderr or done.stdout)[-500:]}")

    def command(self) -> list[str]:
        return self._java("kafka.Kafka", str(self._config))

    def create(self, topic: str) -> None:
        """Create a topic of PARTITIONS partitions and wait until each has a leader."""
        wait_until(lambda: self._partitions(topic) == PARTITIONS, f"Kafka's {topic}", WAIT_S)
        # A leader is known shortly before it serves its partition.
        wait_until(lambda: self._ends(topic)[1] == 0, f"leaders of Kafka's {topic}", WAIT_S)

    def _partitions(self, topic: str) -> int:
        # Metadata, version 4: the topic's name, and permission to create it.
        answer = self._request(3, 4, _I32.pack(1) + _string(topic) + b"\x01")
        answer.i32()  # throttle time, ms
        for _ in range(answer.i32()):
            answer.i32()
            answer.text()
            answer.i32()
            answer.text()
        answer.text()  # the cluster
        answer.i32()  # its controller
        answer.i32()  # one topic
        if answer.i16():
            return 0
        answer.text()
        answer.skip(1)
        return sum(self._has_leader(answer) for _ in range(answer.i32()))

    def _has_leader(self, answer: _Answer) -> bool:
        error, _, leader = answer.i16(), answer.i32(), answer.i32()
        for _ in range(2):  # replicas, and those in sync
            answer.skip(4 * answer.i32())
        return error == 0 and leader >= 0

    def stored(self, topic: str) -> int:
        """Return the number of messages of a topic that consumers can see."""
        total, error = self._ends(topic)
        if error:
            raise BenchmarkFailed(f"Kafka: error {error} for the offsets of {topic}")
        return total

    def _ends(self, topic: str) -> tuple[int, int]:
        """Return the sum of a topic's latest offsets, and an error of any partition or 0."""
        # ListOffsets, version 1, the latest of each partition.
        rows = b"".join(_I32.pack(number) + _I64.pack(-1) for number in range(PARTITIONS))
        body = _I32.pack(-1) + _I32.pack(1) + _string(topic) + _I32.pack(PARTITIONS) + rows
        answer = self._request(2, 1, body)
        answer.i32()
        answer.text()
        total, errors = 0, 0
        for _ in range(answer.i32()):
            answer.i32()
            errors = answer.i16() or errors
            answer.skip(8)
            total += answer.i64()
        return total, errors

    def delete(self, topic: str) -> None:
        """Delete a topic."""
        # DeleteTopics, version 1.
        body = _I32.pack(1) + _string(topic) + _I32.pack(int(_REQUEST_S * 1000))
        answer = self._request(20, 1, body)
        answer.i32()  # throttle time, ms
        answer.i32()
        answer.text()
        if error := answer.i16():
            raise BenchmarkFailed(f"Kafka: error {error} when {topic} was deleted")

    def _request(self, key: int, version: int, body: bytes) -> _Answer:
        head = _I16.pack(key) + _I16.pack(version) + _I32.pack(1) + _string("benchmarks")
        with socket.create_connection(("127.0.0.1", self.port), _REQUEST_S) as connection:
            connection.sendall(_I32.pack(len(head) + len(body)) + head + body)
            with connection.makefile("rb") as stream:
                answer = _Answer(stream.read(_I32.unpack(stream.read(4))[0]))
        answer.i32()  # the correlation id
        return answer


def _string(text: str) -> bytes:
    return _I16.pack(len(text)) + text.encode()


class _Answer:
    """The fields of a response of Kafka, in sequence."""

    def __init__(self, data: bytes) -> None:
        self._data = data
        self._at = 0

    def _take(self, layout: Struct) -> int:
        value: int = layout.unpack_from(self._data, self._at)[0]
        self._at += layout.size
        return value

    def i16(self) -> int:
        return self._take(_I16)

    def i32(self) -> int:
        return self._take(_I32)

    def i64(self) -> int:
        return self._take(_I64)

    def skip(self, count: int) -> None:
        self._at += count

    def text(self) -> str:
        size = max(0, self.i16())
        self._at += size
        return self._data[self._at - size : self._at].decode()


class NatsNode(_Process):
    """nats-server with JetStream on files. A topic is a stream with one subject of the same name.

    It has its default settings: a message is acknowledged once it is in the page cache, which is
    synced every two minutes. With ``is_synced`` each message is synced first (``sync_interval:
    always``).
    """

    def __init__(self, home: Path, *, is_synced: bool = False) -> None:
        self._program = fetch_nats()
        super().__init__(home)
        lines = [f'listen: "127.0.0.1:{self.port}"', "max_payload: 8MB", "jetstream {"]
        lines += [f'store_dir: "{home / "data"}"', "max_file_store: 8GB"]
        lines += ["sync_interval: always"] * is_synced + ["}"]
        (home / "nats.conf").write_text("\n".join(lines))

    def command(self) -> list[str]:
        return [str(self._program), "-c", str(self.home / "nats.conf")]

    def create(self, topic: str) -> None:
        """Create the stream of a topic."""
        config = {"name": topic, "subjects": [topic], "storage": "file", "num_replicas": 1}
        self._request(f"STREAM.CREATE.{topic}", config)

    def stored(self, topic: str) -> int:
        """Return the number of messages of a topic that consumers can see."""
        state = self._request(f"STREAM.INFO.{topic}", {})["state"]
        assert isinstance(state, dict)
        return int(state["last_seq"])

    def delete(self, topic: str) -> None:
        """Delete the stream of a topic."""
        self._request(f"STREAM.DELETE.{topic}", {})

    def _request(self, name: str, fields: Mapping[str, object]) -> dict[str, object]:
        body = json.dumps(fields).encode()
        with socket.create_connection(("127.0.0.1", self.port), _REQUEST_S) as connection:
            head = f"CONNECT {{}}\r\nSUB ask 1\r\nPUB $JS.API.{name} ask {len(body)}\r\n"
            connection.sendall(head.encode() + body + b"\r\n")
            with connection.makefile("rb") as stream:
                while not (line := stream.readline()).startswith(b"MSG "):
                    if not line or line.startswith(b"-ERR"):
                        raise BenchmarkFailed(f"NATS: {line!r}")
                found: dict[str, object] = json.loads(stream.read(int(line.split()[-1])))
        if "error" in found:
            raise BenchmarkFailed(f"NATS: {name}: {found['error']}")
        return found
