"""Which core runs is decided once: the compiled one, unless it is missing or not wanted."""

import os
import subprocess
import sys

from cometmq.speedups import CORE, DESCRIPTION, NAMES, WHY_PLAIN
from scripts import build_core

PRINT_CHOICE = """
from cometmq import speedups
from cometmq.speedups.plain import hashing
print(speedups.CORE, speedups.java_hash is hashing.java_hash, speedups.java_hash("TagA"))
print(speedups.WHY_PLAIN)
print(speedups.DESCRIPTION)
"""
NOT_BUILT = """
import sys
sys.modules["cometmq.speedups.compiled.hashing"] = None
"""
OLDER = """
import sys, types
sys.modules["cometmq.speedups.compiled.hashing"] = older = types.ModuleType("older")
older.__file__ = "hashing.so"
older.java_hash = len
"""


def choice(before: str = "", **environment: str) -> list[str]:
    """What a new process chooses, where `before` runs first: core, reason, both."""
    inherited = {name: value for name, value in os.environ.items() if name != "COMETMQ_PURE"}
    done = subprocess.run(
        [sys.executable, "-c", before + PRINT_CHOICE],
        env=inherited | environment,
        capture_output=True,
        text=True,
        check=True,
        timeout=60,
    )
    return done.stdout.splitlines()


def test_pure_python_is_plain_python() -> None:
    assert choice(COMETMQ_PURE="1") == [
        "plain True 2598919",
        "COMETMQ_PURE=1",
        "plain (COMETMQ_PURE=1)",
    ]


def test_no_other_value_asks_for_plain_python() -> None:
    assert choice(COMETMQ_PURE="0") == choice(COMETMQ_PURE="") == choice()


def test_without_its_modules_plain_python_runs() -> None:
    chosen, why, _ = choice(NOT_BUILT)
    assert chosen == "plain True 2598919"
    assert why == "cometmq.speedups.compiled.hashing is not built"


def test_a_core_that_lacks_a_function_is_not_taken_by_halves() -> None:
    chosen, why, _ = choice(OLDER)
    assert chosen == "plain True 2598919"
    assert why == "hashing.so is of another version: it has no index_hashes"


def test_this_process_says_what_it_chose() -> None:
    assert (CORE, DESCRIPTION) in [("compiled", "compiled"), ("plain", f"plain ({WHY_PLAIN})")]


def test_every_compiled_module_is_imported() -> None:
    assert sorted(NAMES) == sorted(build_core.modules())


def test_where_it_can_be_built_it_is_and_from_these_sources() -> None:
    try:
        build_core.find_toolchain(fetch=False)
    except build_core.BuildError:
        return
    assert build_core.Build(build_core.SOURCES).stale() == [], "run make core"
    assert choice()[0] == "compiled False 2598919"
