"""The Java peers of the tests here."""

from pathlib import Path

import pytest

from tests.compat import anchor
from tests.compat.conftest import NOT_RUN


@pytest.fixture(scope="session")
def jars() -> Path:
    """The folder of RocketMQ 4.9.7's jars."""
    if anchor.missing_tool() is not None:
        pytest.skip(NOT_RUN)
    return anchor.fetch_jars()
