"""What tests of tables share."""

from pathlib import Path

import pytest


@pytest.fixture
def settings(tmp_path: Path) -> dict[str, str]:
    """The properties of a new Iceberg catalogue."""
    return {
        "type": "sql",
        "uri": f"sqlite:///{tmp_path}/catalog.db",
        "warehouse": f"file://{tmp_path}/warehouse",
    }
