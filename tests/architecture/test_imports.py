"""The import contracts of pyproject.toml hold, and each of them notices when it is broken."""

import os
import re
import subprocess
import sys
from pathlib import Path

import pytest

from tests.architecture.rules import ROOT, SRC

LINT_IMPORTS = Path(sys.executable).parent / "lint-imports"

LAYERS = "Imports point one way"
STORE = "The rooms of the store import one way"
TWO_HALVES = "Client, admin and outbox meet the servers only on the wire"
SPARK = "Spark knows the wire and the pure file layouts, nothing else of a server"
CLI = "The command line touches servers only to start them"
PURE = "Protocol, message and filter do no input, output or waiting"
BROKER = "The rooms of the broker import one way"
NET_LAYERS = "The modules of net import one way"
NET = "The sockets know frames, not brokers or clients"


def lint(folder: Path) -> tuple[int, set[str]]:
    """Runs the contracts on `folder/src`; gives the exit code and the broken contracts."""
    environment = os.environ | {"PYTHONPATH": str(folder / "src"), "NO_COLOR": "1"}
    done = subprocess.run(
        [str(LINT_IMPORTS), "--no-cache", "--config", str(ROOT / "pyproject.toml")],
        cwd=folder,
        env=environment,
        capture_output=True,
        text=True,
        check=False,
        timeout=120,
    )
    assert "contracts" in done.stdout.lower(), done.stdout + done.stderr
    return done.returncode, set(re.findall(r"^(.+?) BROKEN", done.stdout, re.MULTILINE))


def skeleton(folder: Path) -> None:
    """The packages of the project and the modules of its layers, without anything in them."""
    named = [
        path
        for room in ("", "store", "net", "broker")
        for path in (SRC / "cometmq" / room).glob("*.py")
    ]
    for package in (SRC / "cometmq", SRC / "pyspark_rocketmq"):
        for path in (*package.rglob("__init__.py"), *named):
            copy = folder / "src" / path.relative_to(SRC)
            copy.parent.mkdir(parents=True, exist_ok=True)
            copy.touch()


def test_the_contracts_hold() -> None:
    assert lint(ROOT) == (0, set())


def test_the_contracts_hold_on_an_empty_tree(tmp_path: Path) -> None:
    skeleton(tmp_path)
    assert lint(tmp_path) == (0, set())


@pytest.mark.parametrize(
    ("module", "line", "contract"),
    [
        ("core/x.py", "import cometmq.net", LAYERS),
        ("core/x.py", "import cometmq.speedups", LAYERS),
        ("speedups/plain/x.py", "import cometmq.core", LAYERS),
        ("message/x.py", "import cometmq.protocol", LAYERS),
        ("broker/app.py", "import cometmq.client", LAYERS),
        ("drawer/__init__.py", "", LAYERS),
        ("store/log/x.py", "import cometmq.store.queue", STORE),
        ("store/read/x.py", "import cometmq.store.messagestore", STORE),
        ("store/maintenance/x.py", "import cometmq.store.recovery.rebuild", STORE),
        ("broker/acknowledgement.py", "import cometmq.broker.send", BROKER),
        ("broker/admin/x.py", "import cometmq.broker.app", BROKER),
        ("broker/send/x.py", "import cometmq.broker.pull", BROKER),
        ("broker/attic/__init__.py", "", BROKER),
        ("client/x.py", "import cometmq.store", TWO_HALVES),
        ("spark/x.py", "import cometmq.store.messagestore", SPARK),
        ("cli/x.py", "import cometmq.broker.send.handler", CLI),
        ("protocol/x.py", "from os import path", PURE),
        ("filter/x.py", "import asyncio", PURE),
        ("net/tasks.py", "import cometmq.message", NET),
        ("net/peer.py", "import cometmq.net.router", NET_LAYERS),
        ("net/resources.py", "import cometmq.net.peer", NET_LAYERS),
        ("net/x.py", "", NET_LAYERS),
    ],
)
def test_a_planted_import_is_found(tmp_path: Path, module: str, line: str, contract: str) -> None:
    skeleton(tmp_path)
    package = tmp_path / "src" / "cometmq"
    for needed in ("store/messagestore.py", "broker/send/handler.py", module):
        (package / needed).parent.mkdir(parents=True, exist_ok=True)
        (package / needed).touch()
    (package / module).write_text(f"{line}\n", encoding="utf-8")
    code, broken = lint(tmp_path)
    assert code != 0
    assert contract in broken


def test_spark_may_read_layouts_and_cli_may_start_servers(tmp_path: Path) -> None:
    skeleton(tmp_path)
    package = tmp_path / "src" / "cometmq"
    for needed in ("store/layout.py", "broker/app.py"):
        (package / needed).touch()
    (package / "spark" / "x.py").write_text("import cometmq.store.layout\n", encoding="utf-8")
    (package / "cli" / "x.py").write_text("import cometmq.broker.app\n", encoding="utf-8")
    assert lint(tmp_path) == (0, set())
