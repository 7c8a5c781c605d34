"""Every program of the tutorial prints what its page says it prints, and every page shows its
program."""

import os
import re
import subprocess
import sys
from pathlib import Path

import pytest

from cometmq.testing.cluster import Cluster
from tests.architecture.rules import ROOT

EXAMPLES = ROOT / "examples"
PAGES = ROOT / "docs" / "tutorial"
NAMES = sorted(path.stem for path in EXAMPLES.glob("*.py") if path.stem != "__init__")
#: Programs whose messages go side by side print their lines in any order.
ANY_ORDER = {"broadcast", "filters", "order", "retry"}
LIMIT_S = 60


@pytest.mark.parametrize("name", NAMES)
def test_it_prints_what_its_page_says(name: str, cometmq_session_cluster: Cluster) -> None:
    done = subprocess.run(
        [sys.executable, str(EXAMPLES / f"{name}.py"), cometmq_session_cluster.namesrv],
        env=os.environ | {"PYTHONWARNINGS": "error"},
        capture_output=True,
        text=True,
        check=False,
        timeout=LIMIT_S,
    )
    assert done.returncode == 0, done.stdout + done.stderr
    expected = (EXAMPLES / "output" / f"{name}.txt").read_text(encoding="utf-8")
    if name in ANY_ORDER:
        assert sorted(done.stdout.splitlines()) == sorted(expected.splitlines())
    else:
        assert done.stdout == expected
    assert done.stderr == ""


@pytest.mark.parametrize("name", NAMES)
def test_its_page_shows_it(name: str) -> None:
    text = "".join(path.read_text(encoding="utf-8") for path in PAGES.glob("*.md"))
    included = set(re.findall(r'^--8<-- "(.+)"$', text, re.MULTILINE))
    assert {f"examples/{name}.py", f"examples/output/{name}.txt"} <= included
    for path in included:
        assert Path(ROOT, path).is_file()
