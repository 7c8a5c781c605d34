"""What users import by the package's own name: all there, and nothing loaded before it is named."""

import subprocess
import sys

import pytest

import cometmq


@pytest.mark.parametrize("name", cometmq.__all__)
def test_every_public_name_is_there(name: str) -> None:
    assert getattr(cometmq, name).__module__.startswith("cometmq.")
    assert name in dir(cometmq)


def test_the_blocking_client_is_not_the_asyncio_one() -> None:
    blocking: type[object] = cometmq.BlockingClient
    assert blocking is not cometmq.Client


def test_an_unknown_name_is_an_attribute_error() -> None:
    with pytest.raises(AttributeError, match="no attribute 'Consumer'"):
        cometmq.Consumer  # noqa: B018


def test_importing_the_package_loads_no_client() -> None:
    program = "import sys, cometmq; print([m for m in sys.modules if m.startswith('cometmq.')])"
    done = subprocess.run(
        [sys.executable, "-c", program], capture_output=True, text=True, check=True, timeout=60
    )
    assert done.stdout == "[]\n"
