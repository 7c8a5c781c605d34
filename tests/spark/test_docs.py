"""The page about Spark names every option and every column, and no other."""

import re

from cometmq.spark.read.options import KNOWN
from cometmq.spark.schema import BY_NAME
from tests.architecture.rules import ROOT

PAGE = (ROOT / "docs" / "spark" / "index.md").read_text(encoding="utf-8")


def section(title: str) -> str:
    return PAGE.split(f"\n## {title}\n")[1].split("\n## ")[0]


def test_columns() -> None:
    rows = re.findall(r"^\| `(\w+)` \| (\S+) \| (.+) \|$", section("Columns"), re.MULTILINE)
    assert rows == [(column.name, column.spark, column.meaning) for column in BY_NAME.values()]


def test_options() -> None:
    first_cells = re.findall(r"^\| (`.+?) \|", section("Options"), re.MULTILINE)
    named = {name for cell in first_cells for name in re.findall(r"`(\w+)`", cell)}
    assert named == {*KNOWN, "namesrv", "subscribe"}
