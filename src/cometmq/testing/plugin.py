"""pytest fixtures with a real broker; pytest finds them as soon as CometMQ is installed.

    async def test_mine(cometmq_cluster):
        async with cometmq.Client(cometmq_cluster.namesrv) as client:
            await client.send("orders", b"...")

An exception in a handler, or in a block of ``message.processing()``, fails the test: the consumer
continues after it, so nothing else would report a failed assertion there. A test of retries allows
such exceptions, all of them or some types:

    @pytest.mark.cometmq_handler_errors(raises=ValueError)

Nothing of CometMQ is imported before a test asks for a fixture.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Final

import pytest

if TYPE_CHECKING:
    from collections.abc import Generator, Iterator
    from pathlib import Path

    from cometmq.client.consumer.callbackerrors import Failure
    from cometmq.testing.cluster import Cluster

#: Marker of a test whose handlers may raise.
ALLOWED: Final = "cometmq_handler_errors"
FIXTURES: Final = frozenset({"cometmq_cluster", "cometmq_session_cluster"})


def pytest_configure(config: pytest.Config) -> None:
    """Register the marker with pytest."""
    config.addinivalue_line(
        "markers",
        f"{ALLOWED}(raises=Exception): handlers may raise this exception, or one of a tuple",
    )


@pytest.hookimpl(wrapper=True)
def pytest_runtest_call(item: pytest.Item) -> Generator[None, object, object]:
    """Fail a test that uses a cluster if its handlers raised."""
    if FIXTURES.isdisjoint(getattr(item, "fixturenames", ())):
        return (yield)
    from cometmq.client.consumer.callbackerrors import recorded

    with recorded() as failures:
        try:
            result = yield
        except BaseException:
            for failure in failures:
                failure.is_reported = True  # its own exception is reported instead
            raise
        _raise_first(item, failures)
    return result


def _raise_first(item: pytest.Item, failures: list[Failure]) -> None:
    """Raise the first failure that the test does not allow and that was not reported yet."""
    marker = item.get_closest_marker(ALLOWED)
    allowed = () if marker is None else marker.kwargs.get("raises", Exception)
    wrong = [each for each in failures if not (each.is_reported or isinstance(each.error, allowed))]
    for failure in failures:
        failure.is_reported = True
    if not wrong:
        return
    error = wrong[0].error
    error.add_note(
        f"A handler or a block of message.processing() raised this; {len(wrong) - 1} more errors "
        f"followed. If the test expects it, mark it with @pytest.mark.{ALLOWED}"
        f"(raises={type(error).__name__})."
    )
    raise error


@pytest.fixture
def cometmq_cluster(tmp_path: Path, request: pytest.FixtureRequest) -> Iterator[Cluster]:
    """Yield a cluster for one test, empty at its start."""
    from cometmq.client.consumer.callbackerrors import recorded
    from cometmq.testing.cluster import cluster_in_thread

    with recorded() as failures, cluster_in_thread(tmp_path / "cometmq") as cluster:
        yield cluster
        # Raise failures that came after the test, while its other fixtures ended.
        _raise_first(request.node, failures)


@pytest.fixture(scope="session")
def cometmq_session_cluster(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Cluster]:
    """Yield one cluster for all tests of a run; they should use topics of their own."""
    from cometmq.testing.cluster import cluster_in_thread

    with cluster_in_thread(tmp_path_factory.mktemp("cometmq")) as cluster:
        yield cluster
