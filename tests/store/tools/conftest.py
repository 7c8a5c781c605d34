"""Small stores to verify."""

from pathlib import Path

import pytest

from tests.store.tools.verifying import written


@pytest.fixture
def sealed(tmp_path: Path) -> Path:
    return written(tmp_path / "store", sealed=True)


@pytest.fixture
def unsealed(tmp_path: Path) -> Path:
    return written(tmp_path / "store", sealed=False)
