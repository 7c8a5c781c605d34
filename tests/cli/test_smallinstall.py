"""`pip install cometmq` has no more than msgspec and PyYAML: what works without the extras."""

import subprocess
import sys
import tomllib
from pathlib import Path

import pytest

PYPROJECT = Path(__file__).parents[2] / "pyproject.toml"

#: Runs code in a process in which only the packages of a plain installation can be imported.
ALONE = """
import sys

class Absent:
    def find_spec(self, name, path=None, target=None):
        if name.partition(".")[0] in {"numpy", "rich", "uvloop", "lz4", "zstandard", "psycopg",
                                      "pyspark", "pyarrow", "deltalake", "cryptography",
                                      "h11", "prometheus_client", "uvicorn", "starlette",
                                      "jinja2", "opentelemetry", "kombu", "celery", "pydantic",
                                      "fastavro", "google", "pyiceberg", "sqlalchemy", "django",
                                      "asyncpg", "faststream", "fast_depends", "fastapi"}:
            raise ModuleNotFoundError(f"No module named {name!r}", name=name)
        return None

sys.meta_path.insert(0, Absent())
"""

IMPORT_ALL = """
import importlib, pkgutil
import cometmq

SKIPPED = ("cometmq.spark", "cometmq.testing", "cometmq.dashboard", "cometmq.kombu",
           "cometmq.faststream",
           "cometmq.otel",
           "cometmq.store.tools", "cometmq.cli.commands.spark",
           "cometmq.message.walk", "cometmq.monitoring.exposition", "cometmq.monitoring.http",
           "cometmq.monitoring.port", "cometmq.monitoring.process")

def named(package):
    for each in pkgutil.iter_modules(package.__path__, package.__name__ + "."):
        if not each.name.startswith(SKIPPED):
            module = importlib.import_module(each.name)
            yield each.name
            if each.ispkg:
                yield from named(module)

print(*named(cometmq))
"""

START_AND_SEND = """
import cometmq, os, signal, sys, threading
from cometmq.cli.main import main
from cometmq.cli.serve import Lifetime

def announce(lifetime, line):
    lifetime._ready = True
    def send():
        try:
            with cometmq.BlockingClient(line.split()[1].partition("=")[2]) as client:
                print(client.send("orders", b"1").status.name)
        finally:
            os.kill(os.getpid(), signal.SIGTERM)
    threading.Thread(target=send).start()

Lifetime.announce = announce
sys.exit(main(["start", "--store", sys.argv[1], "--namesrv-port", "0", "--broker-port", "0",
               "--set", "mappedFileSizeCommitLog=4194304"]))
"""

VERIFY = """
import sys
from cometmq.cli.main import main

sys.exit(main(["store", "verify", sys.argv[1]]))
"""


def run_alone(code: str, *words: str) -> subprocess.CompletedProcess[str]:
    return subprocess.run(
        [sys.executable, "-c", ALONE + code, *words], capture_output=True, text=True, timeout=60
    )


def test_a_plain_installation_needs_two_packages() -> None:
    wanted = tomllib.loads(PYPROJECT.read_text())["project"]["dependencies"]
    assert sorted(each.partition(">")[0] for each in wanted) == ["msgspec", "pyyaml"]


def test_client_broker_and_command_line_need_no_extra() -> None:
    done = run_alone(IMPORT_ALL)
    assert done.returncode == 0, done.stderr
    loaded = done.stdout.split()
    assert {"cometmq.broker.app", "cometmq.client.client", "cometmq.cli.main"} <= {*loaded}


def test_start_serves_a_send_without_extras(tmp_path: Path) -> None:
    done = run_alone(START_AND_SEND, str(tmp_path))
    assert done.returncode == 0, done.stderr
    assert done.stdout.split() == ["OK"]


def test_a_command_that_needs_an_extra_names_it(tmp_path: Path) -> None:
    done = run_alone(VERIFY, str(tmp_path))
    assert done.returncode == 2
    assert done.stderr.splitlines() == [
        "cometmq store: numpy is not installed: pip install 'cometmq[tools]'"
    ]


@pytest.mark.parametrize("extra", ["broker", "cli", "tools", "spark"])
def test_extras_are_there(extra: str) -> None:
    assert tomllib.loads(PYPROJECT.read_text())["project"]["optional-dependencies"][extra]


def test_a_port_for_metrics_needs_an_extra(tmp_path: Path) -> None:
    code = VERIFY.replace(
        '["store", "verify", sys.argv[1]]',
        '["start", "--store", sys.argv[1], "--set", "metricsExporterType=PROM"]',
    )
    done = run_alone(code, str(tmp_path))
    assert done.returncode == 2
    assert "PROM needs prometheus_client" in done.stderr
    assert "pip install 'cometmq[metrics]'" in done.stderr
