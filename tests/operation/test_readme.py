"""The script in the README works as it stands there, but for the ports, which others may use."""

import os
import re
import subprocess
import sys
from pathlib import Path

from cometmq.admin.node import VIP_DISTANCE, lasting_port
from tests.architecture.rules import ROOT

README = (ROOT / "README.md").read_text(encoding="utf-8")


def test_the_script(tmp_path: Path) -> None:
    blocks = re.findall(r"^```sh\n(.*?)^```$", README, re.MULTILINE | re.DOTALL)
    [script] = [block for block in blocks if "cometmq start" in block]
    for written, free in (("9876", lasting_port()), ("10911", lasting_port(VIP_DISTANCE))):
        assert written in script
        script = script.replace(written, str(free))
    done = subprocess.run(
        ["bash", "-eu", "-c", script],
        cwd=tmp_path,
        env=os.environ | {"PATH": f"{Path(sys.executable).parent}:{os.environ['PATH']}"},
        capture_output=True,
        text=True,
        check=False,
        timeout=120,
    )
    assert done.returncode == 0, done.stdout + done.stderr
    assert "A17 for 20 EUR" in done.stdout
    assert "orders" in done.stdout.partition("A17 for 20 EUR")[2]
