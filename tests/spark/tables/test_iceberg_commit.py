"""A commit whose answer is a conflict: nothing of it is deleted if the table may have it."""

import socket
from collections.abc import Callable
from pathlib import Path
from typing import Any, cast

import pyarrow as pa
import pytest
from pyiceberg.catalog import Catalog, load_catalog
from pyiceberg.exceptions import CommitFailedException, CommitStateUnknownException
from pyiceberg.table import TableProperties
from requests import ReadTimeout

from cometmq.spark.tables import icebergcommit
from cometmq.spark.tables.icebergcommit import ConfirmingCatalog, open_catalog

NAME = "shop.orders"
MARK = "cometmq.batch.q"


class Answering:
    """A catalogue that answers to each commit with a conflict; ``act`` is called before."""

    def __init__(self, catalog: Catalog, act: Callable[[Callable[[], object]], object]) -> None:
        self._catalog = catalog
        self._act = act

    def __getattr__(self, name: str) -> Any:
        return getattr(self._catalog, name)

    def commit_table(self, *words: Any) -> Any:
        """Do what the test says with the commit, then answer."""
        self._act(lambda: self._catalog.commit_table(*words))
        raise CommitFailedException("409")


def rows(first: int, stop: int) -> pa.Table:
    return pa.table({"id": pa.array(range(first, stop), pa.int64())})


@pytest.fixture
def catalog(tmp_path: Path) -> Catalog:
    """A catalogue with a table of three rows."""
    places = {"uri": f"sqlite:///{tmp_path / 'c.db'}", "warehouse": f"file://{tmp_path}"}
    found = load_catalog("default", type="sql", **places)
    found.create_namespace("shop")
    found.create_table(NAME, rows(0, 0).schema).append(rows(0, 3))
    return found


def keep_the_newest(catalog: Catalog) -> None:
    """Expire all snapshots but the current one."""
    table = catalog.load_table(NAME)
    newest = table.metadata.current_snapshot_id
    old = [each.snapshot_id for each in table.metadata.snapshots if each.snapshot_id != newest]
    table.maintenance.expire_snapshots().by_ids(old).commit()


def commit(
    catalog: Catalog, act: Callable[[Callable[[], object]], object], *, replaces: bool = False
) -> None:
    """Append rows 3 to 5 through a catalogue that answers with a conflict."""
    table = catalog.load_table(NAME)
    table.metadata.properties[TableProperties.COMMIT_NUM_RETRIES] = "0"
    with table.transaction() as change:
        change.set_properties({MARK: "1"})
        if replaces:
            change.delete("id == 1")
        change.append(rows(3, 6))
        table.catalog = cast("Catalog", ConfirmingCatalog(cast("Catalog", Answering(catalog, act))))


def ids(catalog: Catalog) -> list[int]:
    found: list[int] = catalog.load_table(NAME).scan().to_arrow()["id"].to_pylist()
    return sorted(found)


def test_it_was_made_and_others_expired_it(catalog: Catalog) -> None:
    def act(make: Callable[[], object]) -> None:
        make()
        catalog.load_table(NAME).append(rows(100, 101))
        keep_the_newest(catalog)

    with pytest.raises(CommitStateUnknownException):
        commit(catalog, act)
    assert ids(catalog) == [0, 1, 2, 3, 4, 5, 100]


def test_a_part_of_its_snapshots_was_expired(catalog: Catalog) -> None:
    def act(make: Callable[[], object]) -> None:
        make()
        keep_the_newest(catalog)

    commit(catalog, act, replaces=True)
    assert ids(catalog) == [0, 2, 3, 4, 5]


def test_it_comes_after_the_answer(catalog: Catalog) -> None:
    """The table has the same rows, so the first of two equal requests may be under way."""
    late: list[Callable[[], object]] = []

    def act(make: Callable[[], object]) -> None:
        late.append(make)
        with catalog.load_table(NAME).transaction() as change:
            change.set_properties({"of others": "1"})

    with pytest.raises(CommitStateUnknownException):
        commit(catalog, act)
    late[0]()
    assert ids(catalog) == [0, 1, 2, 3, 4, 5]


def test_it_comes_after_the_answer_and_nothing_changed(catalog: Catalog) -> None:
    late: list[Callable[[], object]] = []
    with pytest.raises(CommitStateUnknownException):
        commit(catalog, late.append)
    late[0]()
    assert ids(catalog) == [0, 1, 2, 3, 4, 5]


def test_another_commit_was_first(catalog: Catalog) -> None:
    with pytest.raises(CommitFailedException):
        commit(catalog, lambda make: catalog.load_table(NAME).append(rows(7, 8)))
    assert ids(catalog) == [0, 1, 2, 7]


def test_a_catalogue_that_does_not_answer_is_not_waited_for_for_ever(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(icebergcommit, "ANSWER_TIMEOUT_S", 0.2)
    with socket.create_server(("127.0.0.1", 0)) as server:
        uri = f"http://127.0.0.1:{server.getsockname()[1]}"
        for given in ({"type": "rest"}, {}, {"credential": "a:b", "oauth2-server-uri": uri}):
            with pytest.raises(ReadTimeout):
                open_catalog("default", {"uri": uri, **given})
