"""Iceberg's own REST catalogue server on loopback, with its catalogue in a file, and a way to it on
which the answers to commits are lost."""

from __future__ import annotations

import hashlib
import shutil
import subprocess
import tempfile
from collections.abc import Iterator
from contextlib import contextmanager
from http.client import HTTPConnection
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from threading import Event, Thread
from typing import Final, Literal
from urllib.error import URLError
from urllib.request import urlopen

import pyspark

from tests.compat.anchor import JavaServer, cache_dir, free_port, wait_until
from tests.packaging.tools import place

POM: Final = Path(__file__).with_suffix(".xml")
MAIN: Final = "org.apache.iceberg.rest.RESTCatalogServer"
FETCH_S: Final = 600
ANSWER_S: Final = 60

#: What becomes of a commit: it does not arrive; it is made and the connection is lost, or a proxy
#: gives up, or sends it again, or nobody answers.
Loss = Literal["", "before", "after", "gave up", "sent twice", "silence"]


def server_jars() -> Path:
    """The folder with the server's jars; fetches them the first time."""
    target = cache_dir() / f"icebergrest-{hashlib.sha256(POM.read_bytes()).hexdigest()[:12]}"
    if target.exists():
        return target
    target.parent.mkdir(parents=True, exist_ok=True)
    fresh = Path(tempfile.mkdtemp(dir=target.parent))
    try:
        command = ["mvn", "-q", "-B", "-f", str(POM), "dependency:copy-dependencies"]
        subprocess.run(
            [*command, f"-DoutputDirectory={fresh}"], check=True, timeout=FETCH_S, cwd=fresh
        )
        place(fresh, target)
    finally:
        shutil.rmtree(fresh, ignore_errors=True)
    return target


@contextmanager
def running_catalogue(folder: Path) -> Iterator[JavaServer]:
    """A server during the block; it may be stopped and started in it, and keeps its catalogue."""
    port = free_port()
    settings = {
        "URI": f"jdbc:sqlite:{folder}/catalog.db?busy_timeout=30000",
        "WAREHOUSE": f"file://{folder}/warehouse",
        "REST_PORT": str(port),
    }
    # Hadoop is in pyspark's jars, and what both have is taken from the server's.
    jars = f"{server_jars()}/*:{Path(pyspark.__file__).parent}/jars/*"
    command = ["env", *(f"CATALOG_{name}={value}" for name, value in settings.items())]
    command += ["java", "-XX:TieredStopAtLevel=1", "-XX:+UseSerialGC", "-cp", jars, MAIN]
    server = JavaServer("catalogue", command, folder, port)
    try:
        start(server)
        yield server
    finally:
        server.stop()


def start(server: JavaServer) -> None:
    """Start a catalogue, and wait until it answers."""
    server.start()
    wait_until(lambda: _answers(server.port), f"a catalogue: {server.output()}")


def _answers(port: int) -> bool:
    try:
        with urlopen(f"{url_of(port)}/v1/config", timeout=ANSWER_S):
            return True
    except URLError:
        return False


def url_of(port: int) -> str:
    """The address of a catalogue or of a way to it."""
    return f"http://127.0.0.1:{port}"


class Losing(ThreadingHTTPServer):
    """A way to the catalogue on ``port``. ``loss`` says what becomes of the next commit."""

    daemon_threads = True

    def __init__(self, port: int) -> None:
        super().__init__(("127.0.0.1", 0), _Way)
        self.port = port
        self.loss: Loss = ""
        self.losses = 0
        self.over = Event()

    def lose(self) -> Loss:
        """Return what becomes of a commit; the next one is passed on."""
        found, self.loss = self.loss, ""
        self.losses += bool(found)
        return found


class _Way(BaseHTTPRequestHandler):
    protocol_version = "HTTP/1.1"
    server: Losing

    def do_GET(self) -> None:
        self._pass(self._read(), "")

    def do_POST(self) -> None:
        body = self._read()
        is_commit = "/tables/" in self.path and b'"requirements"' in body
        self._pass(body, self.server.lose() if is_commit else "")

    do_HEAD = do_DELETE = do_GET

    def _read(self) -> bytes:
        return self.rfile.read(int(self.headers.get("Content-Length", 0)))

    def _pass(self, body: bytes, loss: Loss) -> None:
        if loss == "before":
            self.close_connection = True
            return
        status, answer = self._forward(body)
        if loss == "sent twice":
            status, answer = self._forward(body)
        if loss == "gave up":
            status, answer = 504, b""
        if loss == "silence":
            self.server.over.wait(ANSWER_S)
        if loss in ("after", "silence"):
            self.close_connection = True
            return
        self.send_response(status)
        self.send_header("Content-Type", "application/json")
        self.send_header("Content-Length", str(len(answer)))
        self.end_headers()
        self.wfile.write(answer)

    def _forward(self, body: bytes) -> tuple[int, bytes]:
        connection = HTTPConnection("127.0.0.1", self.server.port, timeout=ANSWER_S)
        try:
            headers = {"Content-Type": self.headers.get("Content-Type", "application/json")}
            connection.request(self.command, self.path, body or None, headers)
            answer = connection.getresponse()
            return answer.status, answer.read()
        finally:
            connection.close()

    def log_message(self, format: str, *words: object) -> None:
        """Say nothing."""


@contextmanager
def losing(port: int) -> Iterator[Losing]:
    """A way to a catalogue during the block."""
    with Losing(port) as way:
        serving = Thread(target=way.serve_forever, daemon=True)
        serving.start()
        try:
            yield way
        finally:
            way.over.set()
            way.shutdown()
            serving.join(ANSWER_S)
