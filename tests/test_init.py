"""What `import cometmq` gives, and what it costs."""

from __future__ import annotations

import inspect
import pydoc
import re
import subprocess
import sys

import pytest

import cometmq
from tests.architecture import rules


def test_every_exported_name_is_there() -> None:
    for name in cometmq.__all__:
        assert getattr(cometmq, name).__name__ in (name, "Client")
    assert set(cometmq.__all__) <= set(dir(cometmq))


def test_every_exported_name_is_documented() -> None:
    pages = (rules.ROOT / "docs" / name for name in ("client.md", "outbox.md"))
    words = set(re.findall(r"\w+", "".join(page.read_text(encoding="utf-8") for page in pages)))
    assert set(cometmq.__all__) - words == set()


def test_other_names_are_not() -> None:
    with pytest.raises(AttributeError, match="no attribute 'Nonsense'"):
        _ = cometmq.Nonsense


def test_a_server_does_not_pay_for_the_client() -> None:
    code = "import sys, cometmq; print(any(n.startswith('cometmq.') for n in sys.modules))"
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert done.stdout.strip() == "False"


def test_the_version_is_that_of_the_distribution() -> None:
    assert re.fullmatch(r"\d+\.\d+\.\d+.*", cometmq.__version__)


def test_help_explains_the_package_and_a_send() -> None:
    page = pydoc.plain(pydoc.render_doc(cometmq))
    assert "async with cometmq.Client(" in page
    assert all(name in page for name in ("BlockingClient", "CometError", "cometmq start"))
    told = pydoc.plain(pydoc.render_doc(cometmq.Client.send))
    parameters = inspect.signature(cometmq.Client.send).parameters
    assert [
        name for name in parameters if name != "self" and f"\n        {name} " not in told
    ] == []
