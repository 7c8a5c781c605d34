"""Runs the code of a notebook, cell by cell, and keeps its charts.

`python -m scripts.notebook NOTEBOOK DIRECTORY` needs what the notebook imports, pandas and
matplotlib; the charts of docs/spark/notebook.md come from it.
"""

import json
import sys
from collections.abc import Iterator
from importlib import import_module
from pathlib import Path
from typing import Any


def code_cells(notebook: Path) -> Iterator[dict[str, Any]]:
    """Return the cells of a notebook that have code, in order."""
    for cell in json.loads(notebook.read_text(encoding="utf-8"))["cells"]:
        if cell["cell_type"] == "code":
            yield cell


def run(notebook: Path, directory: Path) -> list[Path]:
    """Run all cells, as Jupyter does; return the files of the charts that they drew."""
    pyplot = import_module("matplotlib.pyplot")
    names: dict[str, Any] = {"__name__": "__main__"}
    charts: list[Path] = []
    for cell in code_cells(notebook):
        code = compile("".join(cell["source"]), f"{notebook.name}, cell {cell['id']}", "exec")
        exec(code, names)
        for number in pyplot.get_fignums():
            charts.append(directory / f"notebook-{len(charts) + 1}.png")
            pyplot.figure(number).savefig(charts[-1], dpi=80, bbox_inches="tight")
        pyplot.close("all")
    return charts


if __name__ == "__main__":
    for chart in run(Path(sys.argv[1]), Path(sys.argv[2])):
        print(chart)
