"""Commits to an Iceberg catalogue, and finds out after an error whether the commit was made.

A catalogue behind HTTP may make a commit although its client gets an error. The response may be
lost, or a proxy may send the request twice and return the conflict of the second one. pyiceberg
would then delete the manifests of a commit that was made. Therefore the table is loaded after an
error: the ids of its snapshots tell whether it has the commit. If these snapshots may have expired
since, nothing is deleted, and the next attempt looks at the batch number in the table.
"""

from __future__ import annotations

import logging
from collections.abc import Mapping
from functools import partial
from typing import TYPE_CHECKING, Any, Final, cast

from pyiceberg.catalog import PY_CATALOG_IMPL, TYPE, URI, load_catalog
from pyiceberg.catalog.rest import RestCatalog
from pyiceberg.exceptions import CommitFailedException, CommitStateUnknownException
from pyiceberg.table import CommitTableResponse
from pyiceberg.table.refs import MAIN_BRANCH
from pyiceberg.table.update import AddSnapshotUpdate, AssertRefSnapshotId
from pyiceberg.utils.config import Config, merge_config

if TYPE_CHECKING:
    from pyiceberg.catalog import Catalog
    from pyiceberg.table import Table
    from pyiceberg.table.update import TableRequirement, TableUpdate

log = logging.getLogger(__name__)

# Cast, because the annotations describe pydantic's aliases, which are not Python names.
_answer: Final = cast("type[Any]", CommitTableResponse)
_is_current: Final = cast("type[Any]", AssertRefSnapshotId)

CONNECT_TIMEOUT_S: Final = 30
ANSWER_TIMEOUT_S: Final = 600
"""Timeouts of requests to a REST catalogue. pyiceberg has none."""


class ConflictUnexplained(CommitStateUnknownException):
    """Raised for a conflict that no other commit explains: this commit may have been made, or may
    still be made later.

    After this error pyiceberg deletes nothing. The commit can be tried again: both attempts require
    the same current snapshot, so only one of them can succeed.
    """


class ConfirmingCatalog:
    """Wraps ``catalog``. A commit is made only on the snapshot for which it was prepared. If
    ``catalog`` raises an error, the snapshots of the table decide whether the commit succeeded."""

    def __init__(self, catalog: Catalog) -> None:
        self._catalog = catalog

    def __getattr__(self, name: str) -> Any:
        return getattr(self._catalog, name)

    def commit_table(
        self,
        table: Table,
        requirements: tuple[TableRequirement, ...],
        updates: tuple[TableUpdate, ...],
    ) -> CommitTableResponse:
        """Make a commit.

        Raises CommitFailedException if another commit was first, ConflictUnexplained if it may have
        been this one, CommitStateUnknownException if the table cannot be read after an error, and
        the catalogue's errors.
        """
        if not any(isinstance(each, AssertRefSnapshotId) for each in requirements):
            # A commit without rows requires no snapshot. Require the current one: otherwise a late
            # commit could succeed after a newer one and set the mark back.
            current = table.metadata.current_snapshot_id
            requirements += (_is_current(ref=MAIN_BRANCH, snapshot_id=current),)
        try:
            return self._catalog.commit_table(table, requirements, updates)
        except Exception as error:
            found = self._after(error, table)
            if not _has(found, updates):
                adds = any(isinstance(each, AddSnapshotUpdate) for each in updates)
                if isinstance(error, CommitFailedException) and adds and _may_have(found, table):
                    raise ConflictUnexplained(f"no other commit explains: {error}") from error
                raise
            log.info("commit_confirmed table=%s error=%r", table.name(), error)
            place = found.metadata_location
            answer: CommitTableResponse = _answer(metadata=found.metadata, metadata_location=place)
            return answer

    def _after(self, error: Exception, table: Table) -> Table:
        """Return the table, loaded after a commit's ``error``."""
        try:
            return self._catalog.load_table(table.name())
        except Exception as second:
            raise CommitStateUnknownException(
                f"{error}; and then the table could not be read: {second}"
            ) from error


class _LimitedRestCatalog(RestCatalog):
    """A REST catalogue whose requests have timeouts."""

    def _config_headers(self, session: Any) -> None:
        # pyiceberg calls this first for a new session, before it requests a token.
        super()._config_headers(session)
        limits = (CONNECT_TIMEOUT_S, ANSWER_TIMEOUT_S)
        session.request = partial(session.request, timeout=limits)


def open_catalog(name: str, properties: Mapping[str, str]) -> Catalog:
    """Open a catalogue of pyiceberg's configuration. Requests to a REST catalogue have timeouts.

    ``properties`` take precedence over the configuration.
    """
    found = merge_config(Config().get_catalog_config(name) or {}, dict(properties))
    is_rest = str(found.get(TYPE, "rest")).lower() == "rest" and PY_CATALOG_IMPL not in properties
    if is_rest and str(found.get(URI, "")).startswith("http"):
        return _LimitedRestCatalog(name, **cast("dict[str, str]", found))
    return load_catalog(name, **properties)


def _has(table: Table, updates: tuple[TableUpdate, ...]) -> bool:
    """Return whether a table has a snapshot of a commit; False for a commit without snapshots.

    One is enough: a commit is atomic, and other snapshots of it may have expired.
    """
    added = [each.snapshot.snapshot_id for each in updates if isinstance(each, AddSnapshotUpdate)]
    return any(table.metadata.snapshot_by_id(each) for each in added)


def _may_have(table: Table, before: Table) -> bool:
    """Return whether a table may have a commit on ``before``, now or soon, although it has none of
    the commit's snapshots.

    The commit is still possible if the current snapshot is the same as before. It may have been
    made if snapshots since have expired.
    """
    base, at = before.metadata.current_snapshot_id, table.metadata.current_snapshot_id
    if at == base:
        return True
    while at is not None and at != base:
        snapshot = table.metadata.snapshot_by_id(at)
        if snapshot is None:
            return True
        at = snapshot.parent_snapshot_id
    return at != base
