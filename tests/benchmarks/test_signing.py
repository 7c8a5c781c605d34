"""The generator signs requests as clients do: a broker with accounts accepts them."""

from __future__ import annotations

import shutil
from pathlib import Path

import pytest

from benchmarks import loading
from benchmarks.requests import ACCOUNT, write_rules
from tests.broker.serving import running_broker


@pytest.mark.skipif(shutil.which("gcc") is None, reason="the generator is compiled with gcc")
@pytest.mark.parametrize(("secret", "is_right"), [("secret-of-load", True), ("another", False)])
@pytest.mark.parametrize("kind", ["send", "batch", "commit"])
async def test_a_generator_signs_what_it_sends(
    tmp_path: Path, kind: str, secret: str, is_right: bool
) -> None:
    program = loading.build_load(tmp_path)
    write_rules(tmp_path)
    async with running_broker(tmp_path, None, aclEnable="true") as running:
        port = running.broker.port
        words = [
            program,
            kind,
            port,
            "signed",
            4,
            2,
            8,
            100,
            0.2,
            *([3] if kind == "batch" else []),
        ]
        words.append(f"sign={ACCOUNT.access_key}:{secret}")
        found = await loading.run_program([str(word) for word in words], kind, 30)
    assert (found["errors"] == 0) is is_right
    assert (found["messages_per_s"] > 0) is is_right
