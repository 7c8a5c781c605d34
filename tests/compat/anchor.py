"""A real Apache RocketMQ on loopback, 4.9.7 or 5.5.0: jars, name server, broker, tools, clients.

The jars come through Maven once and stay in a cache folder (COMETMQ_TEST_CACHE, else the user's
cache); so do compiled test programs, under a key that covers their text. Processes are ended by
their own handle, never by name.
"""

from __future__ import annotations

import hashlib
import os
import random
import re
import shutil
import signal
import socket
import subprocess
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import Final

from cryptography.hazmat.primitives.serialization import (
    Encoding,
    NoEncryption,
    PrivateFormat,
    load_pem_private_key,
)

VERSION: Final = "4.9.7"
LATEST: Final = "5.5.0"
HERE: Final = Path(__file__).parent
START_TIMEOUT_S: Final = 90.0
STOP_TIMEOUT_S: Final = 30.0
#: Below the ports of outgoing connections, and all of five digits.
PORTS: Final = (10_000, 31_000)

#: RocketMQ 4.9 was written for Java 8; Java 17 wants these doors named.
OPENINGS: Final = (
    "--add-exports=java.base/jdk.internal.ref=ALL-UNNAMED",
    "--add-exports=java.base/sun.nio.ch=ALL-UNNAMED",
    "--add-opens=java.base/java.nio=ALL-UNNAMED",
    "--add-opens=java.base/sun.nio.ch=ALL-UNNAMED",
    "--add-opens=java.base/jdk.internal.misc=ALL-UNNAMED",
    "-Dio.netty.tryReflectionSetAccessible=true",
    "-XX:TieredStopAtLevel=1",
)

#: Test programs are written for RocketMQ 4. In RocketMQ 5 these parts of org.apache.rocketmq.common
#: are in org.apache.rocketmq.remoting.protocol.
MOVED: Final = re.compile(
    r"org\.apache\.rocketmq\.common\."
    r"(?:protocol\.|(?=admin\.|subscription\.|filter\.FilterAPI|DataVersion))"
)

#: Files of a few megabytes, and patience: a test machine may be busy with other things.
TEST_SETTINGS: Final[Mapping[str, str]] = {
    "mappedFileSizeCommitLog": str(4 * 1024 * 1024),
    "mappedFileSizeConsumeQueue": str(3_000 * 20),
    "maxHashSlotNum": "10000",
    "maxIndexNum": "40000",
    "waitTimeMillsInSendQueue": "5000",
    "osPageCacheBusyTimeOutMills": "10000",
    "diskMaxUsedSpaceRatio": "98",
}

_LOGBACK: Final = (
    '<configuration><appender name="F" class="ch.qos.logback.core.FileAppender"><file>{path}</file>'
    "<encoder><pattern>%d %p %t - %m%n</pattern></encoder></appender>"
    '<root level="WARN"><appender-ref ref="F"/></root></configuration>\n'
)


class AnchorFailed(Exception):
    """A Java process did not start, answer or end as it should."""


def cache_dir() -> Path:
    """Where jars and compiled programs stay between runs."""
    if chosen := os.environ.get("COMETMQ_TEST_CACHE"):
        return Path(chosen)
    return Path(os.environ.get("XDG_CACHE_HOME") or Path.home() / ".cache") / "cometmq-tests"


def missing_tool() -> str | None:
    """The first program that these tests need and the machine does not have."""
    return next((name for name in ("java", "javac", "mvn") if shutil.which(name) is None), None)


def fetch_jars(version: str = VERSION) -> Path:
    """The folder with a version's jars; fetches them the first time. Raises CalledProcessError."""
    target = cache_dir() / f"rocketmq-{version}"
    subprocess.run([str(HERE / "anchor" / "fetch.sh"), version, str(target)], check=True)
    return target


def version_of(jars: Path) -> str:
    """The version of RocketMQ that a folder of `fetch_jars` holds."""
    return jars.name.removeprefix("rocketmq-")


def compile_java(jars: Path, sources: Sequence[Path]) -> Path:
    """Compiles programs against the jars; gives the folder of classes. Raises AnchorFailed."""
    texts = {source.name: source.read_text(encoding="utf-8") for source in sorted(sources)}
    if version_of(jars) != VERSION:
        texts = {name: as_in_rocketmq_5(text) for name, text in texts.items()}
    digest = hashlib.sha256(version_of(jars).encode())
    for name, text in texts.items():
        digest.update(f"{name}\0{text}".encode())
    target = cache_dir() / "classes" / digest.hexdigest()[:24]
    if target.is_dir():
        return target
    fresh = target.with_name(f"{target.name}.{os.getpid()}")
    shutil.rmtree(fresh, ignore_errors=True)
    fresh.mkdir(parents=True)
    for name, text in texts.items():
        (fresh / name).write_text(text, encoding="utf-8")
    command = ["javac", "-Xlint:-options", "-cp", f"{jars}/*", "-d", "."]
    done = subprocess.run([*command, *texts], capture_output=True, text=True, cwd=fresh)
    if done.returncode != 0:
        shutil.rmtree(fresh)
        raise AnchorFailed(f"javac: {done.stderr}")
    try:
        fresh.rename(target)
    except OSError:  # another test run was faster
        shutil.rmtree(fresh)
    return target


def as_in_rocketmq_5(source: str) -> str:
    """A program's text with the package names of RocketMQ 5."""
    return MOVED.sub("org.apache.rocketmq.remoting.protocol.", source)


def java_command(
    class_path: Sequence[Path | str],
    home: Path,
    *,
    heap: tuple[str, str] = ("64m", "512m"),
    properties: Mapping[str, str] | None = None,
) -> list[str]:
    """The words before the main class: heap, class path, and everything private under `home`."""
    words = ["java", *OPENINGS, f"-Xms{heap[0]}", f"-Xmx{heap[1]}"]
    places = {
        "user.home": str(home),
        "rocketmq.home.dir": str(home),
        "rocketmq.client.logRoot": str(home / "logs"),
        "rocketmq.client.logLevel": "WARN",
    }
    words += [f"-D{key}={value}" for key, value in (places | dict(properties or {})).items()]
    return [*words, "-cp", ":".join(str(entry) for entry in class_path)]


def prepare_home(home: Path) -> None:
    """The folders and log settings that the programs look for under rocketmq.home.dir."""
    (home / "conf").mkdir(parents=True, exist_ok=True)
    (home / "logs").mkdir(exist_ok=True)
    for part in ("namesrv", "broker", "tools"):
        text = _LOGBACK.format(path=home / "logs" / f"{part}.log")
        (home / "conf" / f"logback_{part}.xml").write_text(text, encoding="utf-8")


def mqadmin(jars: Path, home: Path, *arguments: str, timeout_s: float = 60) -> str:
    """Runs `mqadmin` in a JVM of its own and gives what it printed. Raises AnchorFailed."""
    prepare_home(home)
    main = "org.apache.rocketmq.tools.command.MQAdminStartup"
    command = [*java_command([f"{jars}/*"], home), main, *arguments]
    # Some commands write into the working directory.
    done = subprocess.run(command, capture_output=True, text=True, timeout=timeout_s, cwd=home)
    if done.returncode != 0:
        raise AnchorFailed(f"mqadmin {' '.join(arguments)}: {done.stderr}")
    return done.stdout


def free_port(*beside: int) -> int:
    """A loopback port that is free, and with it those at the given distances.

    None that the system gives to outgoing connections: a server that is down for a moment must find
    its port free when it comes back.
    """
    for _ in range(1_000):
        port = random.randrange(*PORTS)
        if all(_is_free(port + distance) for distance in (0, *beside)):
            return port
    raise AnchorFailed("no free ports")


def _is_free(port: int) -> bool:
    with socket.socket() as probe:
        try:
            probe.bind(("127.0.0.1", port))
        except OSError:
            return False
    return True


def as_pkcs8(pem: bytes) -> bytes:
    """A private key in the format that Java reads."""
    key = load_pem_private_key(pem, None)
    return key.private_bytes(Encoding.PEM, PrivateFormat.PKCS8, NoEncryption())


def wait_until(ready: Callable[[], bool], what: str, timeout_s: float = START_TIMEOUT_S) -> None:
    """Asks `ready` until it holds. Raises AnchorFailed when it does not in time."""
    deadline = time.monotonic() + timeout_s
    while not ready():
        if time.monotonic() > deadline:
            raise AnchorFailed(f"not within {timeout_s} s: {what}")
        time.sleep(0.05)


def answers(port: int) -> bool:
    """Whether somebody accepts connections on a loopback port."""
    try:
        with socket.create_connection(("127.0.0.1", port), 1):
            return True
    except OSError:
        return False


@dataclass(slots=True)
class JavaServer:
    """One server process of RocketMQ: a main class, its configuration file and its output."""

    name: str
    command: list[str]
    home: Path
    port: int
    process: subprocess.Popen[bytes] | None = field(default=None, init=False)

    @property
    def pid(self) -> int:
        """The process id. Raises AnchorFailed when it does not run."""
        if self.process is None:
            raise AnchorFailed(f"{self.name} does not run")
        return self.process.pid

    def start(self) -> None:
        """Starts it and waits until its port accepts. Raises AnchorFailed with its last output."""
        with self.output_path.open("wb") as output:
            self.process = subprocess.Popen(
                self.command,
                stdin=subprocess.DEVNULL,
                stdout=output,
                stderr=subprocess.STDOUT,
                env=os.environ | {"ROCKETMQ_HOME": str(self.home)},
                start_new_session=True,
            )
        wait_until(self._ready, f"{self.name} on port {self.port}: {self.output()}")

    @property
    def output_path(self) -> Path:
        """What the process printed."""
        return self.home / f"{self.name}.out"

    def output(self) -> str:
        """The last lines that it printed."""
        return self.output_path.read_bytes()[-2000:].decode(errors="replace")

    def _ready(self) -> bool:
        assert self.process is not None
        if self.process.poll() is not None:
            raise AnchorFailed(f"{self.name} ended: {self.output()}")
        return answers(self.port)

    def stop(self, sent: signal.Signals = signal.SIGTERM) -> None:
        """Ends it with the signal, and by SIGKILL when that takes too long."""
        if self.process is None:
            return
        self.process.send_signal(sent)
        try:
            self.process.wait(STOP_TIMEOUT_S)
        except subprocess.TimeoutExpired:
            self.process.kill()
            self.process.wait()
        self.process = None


class JavaCluster:
    """A Java name server and a Java broker under one folder; a restart keeps ports and store."""

    def __init__(
        self,
        jars: Path,
        home: Path,
        settings: Mapping[str, str] | None = None,
        *,
        store: Path | None = None,
        heap: tuple[str, str] = ("256m", "1g"),
        namesrv_seen_by_broker: str | None = None,
        properties: Mapping[str, str] | None = None,
        openings: Sequence[str] = (),
    ) -> None:
        self.home = home
        self.store = store or home / "store"
        prepare_home(home)
        namesrv_port, broker_port = free_port(), free_port(-2, 1)
        self.namesrv = f"127.0.0.1:{namesrv_port}"
        self.broker = f"127.0.0.1:{broker_port}"
        seen = namesrv_seen_by_broker or self.namesrv
        lines = {**self._broker_lines(broker_port, seen), **TEST_SETTINGS, **(settings or {})}
        self._write("broker.conf", lines)
        kept = home / "kv.json"
        names = {"listenPort": str(namesrv_port), "kvConfigPath": str(kept)}
        self._write("namesrv.conf", names | {"rocketmqHome": str(home)})
        start = java_command([f"{jars}/*"], home, properties=properties)
        namesrv_main = "org.apache.rocketmq.namesrv.NamesrvStartup"
        namesrv_command = [*start, namesrv_main, "-c", str(home / "conf" / "namesrv.conf")]
        self.namesrv_server = JavaServer("namesrv", namesrv_command, home, namesrv_port)
        start = java_command([f"{jars}/*"], home, heap=heap, properties=properties)
        start[1:1] = openings
        broker_main = "org.apache.rocketmq.broker.BrokerStartup"
        broker_command = [*start, broker_main, "-c", str(home / "conf" / "broker.conf")]
        self.broker_server = JavaServer("broker", broker_command, home, broker_port)

    def _broker_lines(self, port: int, namesrv: str) -> dict[str, str]:
        return {
            "brokerClusterName": "DefaultCluster",
            "brokerName": "broker-a",
            "brokerId": "0",
            "brokerIP1": "127.0.0.1",
            "brokerIP2": "127.0.0.1",
            "listenPort": str(port),
            "haListenPort": str(port + 1),
            "namesrvAddr": namesrv,
            "rocketmqHome": str(self.home),
            "storePathRootDir": str(self.store),
            "storePathCommitLog": str(self.store / "commitlog"),
            "enablePropertyFilter": "true",
        }

    def _write(self, name: str, lines: Mapping[str, str]) -> None:
        text = "".join(f"{key}={value}\n" for key, value in lines.items())
        (self.home / "conf" / name).write_text(text, encoding="utf-8")

    def start(self) -> None:
        """Starts both and waits until the broker is in the name server's tables."""
        if self.namesrv_server.process is None:
            self.namesrv_server.start()
        self.broker_server.start()
        wait_until(self._is_routed, f"a route to the broker: {self.broker_server.output()}")

    def _is_routed(self) -> bool:
        return route_code(self.namesrv, "SELF_TEST_TOPIC") == 0

    def stop(self) -> None:
        """Asks the broker to end, and waits. The name server is killed: it has nothing to write at
        its end, and takes three seconds for it."""
        self.broker_server.stop()
        self.namesrv_server.stop(signal.SIGKILL)

    def kill(self) -> None:
        """Ends both at once, as a machine that loses its power would."""
        self.broker_server.stop(signal.SIGKILL)
        self.namesrv_server.stop(signal.SIGKILL)

    @contextmanager
    def until_killed(self) -> Iterator[JavaCluster]:
        """Runs for as long as the block, for those that look at nothing of it afterwards: a Java
        broker takes its time to leave."""
        try:
            self.start()
            yield self
        finally:
            self.kill()

    def __enter__(self) -> JavaCluster:
        try:
            self.start()
        except BaseException:
            self.kill()
            raise
        return self

    def __exit__(self, *_: object) -> None:
        self.stop()


def route_code(namesrv: str, topic: str) -> int:
    """What a name server answers when asked for the route of a topic: 0 found, 17 unknown."""
    return answer_code(namesrv, 105, f'"topic":"{topic}"')


def wait_for_figures(broker: str) -> None:
    """Waits until a broker can say how it does, which Java's cannot before it has looked at itself
    for the first time, a second after its start. Raises AnchorFailed."""
    wait_until(lambda: answer_code(broker, 28) == 0, f"figures of {broker}")


def answer_code(address: str, code: int, fields: str = "", body: bytes = b"") -> int:
    """The response code of a server to a request; -1 when it gives none."""
    host, _, port = address.partition(":")
    head = (
        f'{{"code":{code},"extFields":{{{fields}}},"flag":0,"language":"JAVA","opaque":1,'
        '"serializeTypeCurrentRPC":"JSON","version":407}'
    ).encode()
    try:
        with socket.create_connection((host, int(port)), 5) as connection:
            sizes = (4 + len(head) + len(body)).to_bytes(4, "big") + len(head).to_bytes(4, "big")
            connection.sendall(sizes + head + body)
            with connection.makefile("rb") as answer:
                body = answer.read(int.from_bytes(answer.read(4), "big"))
    except OSError:
        return -1
    text = body[4:].split(b'"code":', 1)
    return int(text[1].split(b",", 1)[0]) if len(text) == 2 else -1
