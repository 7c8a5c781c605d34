"""The notebook runs as it stands, in an environment with pandas and matplotlib."""

import os
import sys
from pathlib import Path

import pytest

from cometmq.testing.cluster import Cluster
from scripts.notebook import code_cells
from tests.architecture.rules import ROOT
from tests.packaging.tools import locked_packages, run

NOTEBOOK = ROOT / "examples" / "notebook" / "topic.ipynb"
LOCK = ROOT / "requirements" / "notebook.lock"
#: An empty chart is smaller.
CHART_BYTES_MIN = 8_000


def test_the_notebook_is_committed_without_outputs() -> None:
    cells = [*code_cells(NOTEBOOK)]
    assert len(cells) > 5
    assert all(cell["outputs"] == [] and cell["execution_count"] is None for cell in cells)


@pytest.mark.spark
def test_the_notebook_runs_and_draws_its_charts(
    cometmq_session_cluster: Cluster, tmp_path: Path
) -> None:
    paths = [locked_packages(LOCK), ROOT / "src", ROOT]
    run(
        [sys.executable, "-m", "scripts.notebook", str(NOTEBOOK), str(tmp_path)],
        NAMESRV_ADDR=cometmq_session_cluster.namesrv,
        MPLBACKEND="Agg",
        MPLCONFIGDIR=str(tmp_path / "matplotlib"),
        PYTHONPATH=os.pathsep.join(map(str, paths)),
    )
    charts = sorted(tmp_path.glob("*.png"))
    assert [chart.name for chart in charts] == ["notebook-1.png", "notebook-2.png"]
    assert min(chart.stat().st_size for chart in charts) > CHART_BYTES_MIN
