"""The programs of docs/testing.md run as they stand there, under a pytest of their own."""

import re
import subprocess
import sys
from pathlib import Path

from tests.architecture.rules import ROOT

PAGE = (ROOT / "docs" / "testing.md").read_text(encoding="utf-8")


def test_its_programs(tmp_path: Path) -> None:
    sends, retries, clusters, postgres = re.findall(
        r"^```python\n(.*?)^```$", PAGE, re.MULTILINE | re.DOTALL
    )
    indented = "\n".join(f"    {line}" for line in (clusters + postgres).splitlines())
    text = f"import pytest\n{sends}\n{retries}\nasync def test_forms(tmp_path):\n{indented}\n"
    for form in ("running_cluster", "cluster_in_thread", "ProcessCluster"):
        assert f"{form}(tmp_path" in text
        text = text.replace(f"{form}(tmp_path", f"{form}(tmp_path / '{form}'")
    (tmp_path / "test_shop.py").write_text(text)
    words = ["-m", "pytest", "-q", "-p", "no:cacheprovider", "-o", "asyncio_mode=auto"]
    done = subprocess.run(
        [sys.executable, *words, "test_shop.py"],
        cwd=tmp_path, capture_output=True, text=True, timeout=240, check=False,
    )  # fmt: skip
    assert done.returncode == 0, done.stdout + done.stderr
    assert "3 passed" in done.stdout
