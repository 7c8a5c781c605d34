"""What holds for every test: hypothesis profiles, markers that follow from the folder, and both
cores."""

import os
import signal
import sys
from importlib import import_module
from pathlib import Path
from types import SimpleNamespace

import pytest
from hypothesis import HealthCheck, settings

from cometmq.speedups import NAMES

TESTS_DIR = Path(__file__).parent

pytest_plugins = ["pytester"]

# Folders whose tests belong to one part of `make test` as a whole.
FOLDER_MARKERS = {
    "cluster": "cluster",
    "compat": "compat",
    "examples/services": "operation",
    "operation": "operation",
    "simulation/store": "store",
    "store": "store",
}

# A shell starts programs in the background with interrupts ignored, also for all their children.
if signal.getsignal(signal.SIGINT) is signal.SIG_IGN:
    signal.signal(signal.SIGINT, signal.default_int_handler)

# Spark starts its Python workers by name; without this they would be the machine's, not ours.
os.environ.setdefault("PYSPARK_PYTHON", sys.executable)
os.environ.setdefault("SPARK_LOCAL_IP", "127.0.0.1")
# Before each JVM of Spark another one finds out how to start it.
os.environ.setdefault("SPARK_LAUNCHER_OPTS", "-XX:TieredStopAtLevel=1 -XX:+UseSerialGC")

settings.register_profile(
    "fast",
    derandomize=True,
    deadline=None,
    max_examples=100,
    suppress_health_check=[HealthCheck.too_slow],
)
settings.register_profile(
    "deep",
    derandomize=False,
    deadline=None,
    max_examples=5_000,
    print_blob=True,
    suppress_health_check=[HealthCheck.too_slow],
)
settings.load_profile(os.environ.get("HYPOTHESIS_PROFILE", "fast"))


def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    """Mark tests by the folder they are in, so that no file can forget it."""
    for item in items:
        for folder, marker in FOLDER_MARKERS.items():
            if item.path.is_relative_to(TESTS_DIR / folder):
                item.add_marker(marker)


def functions_of(core_name: str) -> SimpleNamespace:
    """Return the functions of one core, and its name. Raises ImportError where it is not built."""
    functions = {
        name: getattr(import_module(f"cometmq.speedups.{core_name}.{module}"), name)
        for module, names in NAMES.items()
        for name in names
    }
    return SimpleNamespace(name=core_name, **functions)


def cores() -> list[SimpleNamespace]:
    """Return plain Python, and the compiled core where it is built."""
    try:
        return [functions_of("plain"), functions_of("compiled")]
    except ImportError:
        return [functions_of("plain")]


def pytest_generate_tests(metafunc: pytest.Metafunc) -> None:
    """Run each test that takes a `core` with every core there is."""
    asked = {each.args[0] for each in metafunc.definition.iter_markers("parametrize")}
    if "core" in metafunc.fixturenames and "core" not in asked:
        metafunc.parametrize("core", cores(), ids=lambda core: core.name, scope="session")
