"""What Spark's tests share: a session, servers, Java clusters, and connections that end with the
test that opened them."""

from collections.abc import Iterator
from contextlib import ExitStack
from pathlib import Path

import pytest
from pyspark.sql import SparkSession

from cometmq.spark.brokers import wire
from cometmq.spark.read import discovery
from cometmq.spark.session import local_session
from cometmq.testing.postgres import running_postgres
from tests.compat.anchor import cache_dir
from tests.mariadb import MariaDbMissing, running_mariadb
from tests.spark.standalone import Standalone, standalone

HERE = Path(__file__).parent
MANY_JVMS = [
    HERE / name for name in ("test_standalone.py", "test_java.py", "jobs/test_interrupted.py")
]

# The quick compiler and the plain collector alone: the JVM is young in every test, and the machine
# is small.
QUICK_JVM = {"spark.driver.extraJavaOptions": "-Xss8m -XX:TieredStopAtLevel=1 -XX:+UseSerialGC"}


def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    """Files that start JVMs beside the session's go first: they take longest, and whoever works on
    one of them in the end works alone."""
    here = [at for at, item in enumerate(items) if item.path.is_relative_to(HERE)]
    ordered = sorted((items[at] for at in here), key=lambda item: item.path not in MANY_JVMS)
    for at, item in zip(here, ordered, strict=True):
        items[at] = item


@pytest.fixture(scope="session", autouse=True)
def nothing_is_remembered(tmp_path_factory: pytest.TempPathFactory) -> Iterator[None]:
    """Clusters of tests have the ports and names of others before them, which nobody may know. Any
    JVM starts later, and Spark's Python processes take the environment from there. What tests fetch
    stays where it is."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("COMETMQ_TEST_CACHE", str(cache_dir()))
        patch.setenv("XDG_CACHE_HOME", str(tmp_path_factory.mktemp("cache")))
        yield


@pytest.fixture(scope="session")
def spark() -> Iterator[SparkSession]:
    session = local_session("tests", settings=QUICK_JVM)
    yield session
    session.stop()


@pytest.fixture(scope="session")
def postgres() -> Iterator[str]:
    """The conninfo of a server that all Spark tests share."""
    with running_postgres() as conninfo:
        yield conninfo


@pytest.fixture(scope="session")
def mysql() -> Iterator[str]:
    """The URL of a MariaDB server that all Spark tests share."""
    with ExitStack() as stack:
        try:
            url = stack.enter_context(running_mariadb())
        except MariaDbMissing as error:
            pytest.skip(f"needs MariaDB: {error}")
        yield url


@pytest.fixture(scope="session")
def spark_cluster(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Standalone]:
    """A master and two workers; drivers are processes of the tests' own."""
    with standalone(tmp_path_factory.mktemp("standalone")) as cluster:
        yield cluster


@pytest.fixture(autouse=True)
def no_connection_is_left() -> Iterator[None]:
    """Peers of a test are gone when it ends, so what it knew of them must be too."""
    yield
    wire.close_all()


@pytest.fixture
def finds_at_once(monkeypatch: pytest.MonkeyPatch) -> None:
    """A stream looks for new queues at every batch, not once a second."""
    monkeypatch.setattr(discovery, "DISCOVERY_MS", 0)
