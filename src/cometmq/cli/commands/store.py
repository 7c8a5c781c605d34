"""``cometmq store ...``: look into a store directory of CometMQ or of a Java broker."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path
from typing import Annotated

import typer

from cometmq.core.settings import build, parse_properties
from cometmq.store.config import StoreConfig

app = typer.Typer(help="Store directories: look, verify, dump, snapshot.", no_args_is_help=True)

Directory = Annotated[
    Path, typer.Argument(metavar="DIR", show_default=False, help="The store directory.")
]
ConfigFile = Annotated[
    Path | None,
    typer.Option(
        "-c", "--config", metavar="FILE", help="The broker's property file, where it has one."
    ),
]


@app.callback()
def _stores() -> None:
    """Commands on a directory, most of them while no broker runs on it."""


def settings(directory: Path, config: Path | None) -> StoreConfig:
    """The settings of the store in ``directory``: those of the file, and that directory.

    Raises SettingsError for a line that is none, OSError for a file that cannot be read.
    """
    values = {} if config is None else parse_properties(config.read_text(encoding="utf-8"))
    return replace(build(StoreConfig, values)[0], store_path_root_dir=str(directory))
