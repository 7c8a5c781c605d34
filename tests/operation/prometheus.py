"""A real Prometheus for tests: Debian's, on loopback, without root and without an installation.

It is the machine's, or Debian's package is downloaded into the cache folder and unpacked there.
"""

from __future__ import annotations

import json
import shutil
import subprocess
import time
import urllib.parse
import urllib.request
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from cometmq.admin.node import lasting_port
from tests.debian import PackageMissing, unpacked

STARTING_S = 60


class PrometheusMissing(Exception):
    """Prometheus is not on this machine and could not be fetched; the message says why."""


def programs() -> Path:
    """The folder of prometheus and promtool; they are fetched the first time. Raises
    PrometheusMissing."""
    installed = shutil.which("promtool")
    if installed is not None:
        return Path(installed).parent
    try:
        return unpacked("prometheus", ["prometheus"]) / "usr" / "bin"
    except PackageMissing as error:
        raise PrometheusMissing(str(error)) from None


@dataclass(frozen=True, slots=True)
class Prometheus:
    """A running Prometheus."""

    address: str

    def ask(self, path: str, **arguments: str) -> Any:
        """The data of an answer. Raises OSError and AssertionError."""
        query = urllib.parse.urlencode(arguments)
        with urllib.request.urlopen(
            f"http://{self.address}/api/v1/{path}?{query}", timeout=60
        ) as a:
            answer = json.loads(a.read())
        assert answer["status"] == "success", answer
        return answer["data"]

    def query(self, expression: str) -> list[tuple[dict[str, str], float]]:
        """Labels and value of each series of an expression, now."""
        found = self.ask("query", query=expression)
        assert found["resultType"] == "vector", found
        return [(each["metric"], float(each["value"][1])) for each in found["result"]]

    def value(self, expression: str) -> float:
        """The only value of an expression; 0 if there is none."""
        found = self.query(expression)
        assert len(found) < 2, found
        return found[0][1] if found else 0.0


@contextmanager
def running_prometheus(
    directory: Path, target: str, rules: Path, interval_s: int = 2
) -> Iterator[Prometheus]:
    """Run Prometheus with files of rules; it scrapes a port as job `cometmq`."""
    config = {
        "global": {
            "scrape_interval": f"{interval_s}s",
            "evaluation_interval": f"{interval_s}s",
            "scrape_timeout": f"{interval_s}s",
        },
        "rule_files": [str(rules)],
        "scrape_configs": [
            {"job_name": "cometmq", "static_configs": [{"targets": [target]}]},
        ],
    }
    path = directory / "prometheus.yml"
    path.write_text(json.dumps(config))  # which is YAML too
    address = f"127.0.0.1:{lasting_port()}"
    command = [
        *(str(programs() / "prometheus"), f"--config.file={path}", "--log.level=warn"),
        *(f"--storage.tsdb.path={directory / 'data'}", f"--web.listen-address={address}"),
    ]
    with (directory / "prometheus.log").open("wb") as log:
        process = subprocess.Popen(command, stdout=log, stderr=log, cwd=directory)
    try:
        running = Prometheus(address)
        _await(running, process, directory / "prometheus.log")
        yield running
    finally:
        process.terminate()
        process.wait(60)


def _await(running: Prometheus, process: subprocess.Popen[bytes], log: Path) -> None:
    deadline = time.monotonic() + STARTING_S
    while True:
        try:
            if running.query("up"):
                return
        except OSError:
            pass
        assert process.poll() is None, log.read_text()[-2000:]
        assert time.monotonic() < deadline, log.read_text()[-2000:]
        time.sleep(0.1)
