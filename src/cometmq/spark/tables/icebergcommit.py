"""Commits to an Iceberg catalogue whose answer cannot be relied on.

A catalogue behind HTTP may make a commit and its answer is lost, or comes twice: a proxy that sends
a request again gets a conflict for a commit that was made. pyiceberg would delete the commit's
manifests then. So after an error the table is looked at: the ids of its snapshots tell whether the
commit is there. Others may have expired them since; then nothing is deleted, and the batch's number
in the table decides at the next try.
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

# Their annotations describe pydantic's aliases, which are no Python names.
_answer: Final = cast("type[Any]", CommitTableResponse)
_is_current: Final = cast("type[Any]", AssertRefSnapshotId)

CONNECT_TIMEOUT_S: Final = 30
#: A catalogue that does not answer for so long never will; pyiceberg would wait for ever.
ANSWER_TIMEOUT_S: Final = 600


class ConflictUnexplained(CommitStateUnknownException):
    """Raised for a conflict that no other commit explains: this commit may be there, or come late.

    pyiceberg deletes nothing then. A commit that is tried again and one that comes late cannot both
    be made, because both are made for the same snapshot.
    """


class ConfirmingCatalog:
    """A catalogue that makes a commit only on the snapshot that the commit was made for, and that
    answers by what the table holds if ``catalog`` answers with an error or not at all."""

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
        """Make a commit. Raises CommitFailedException if another commit was first,
        ConflictUnexplained if it may have been this one, CommitStateUnknownException if the table
        cannot be read after an error, and the catalogue's errors."""
        if not any(isinstance(each, AssertRefSnapshotId) for each in requirements):
            # A commit without rows: it would pass later ones, and set the mark back.
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
        """Return the table as it is after a commit's error."""
        try:
            return self._catalog.load_table(table.name())
        except Exception as second:
            raise CommitStateUnknownException(
                f"{error}; and then the table could not be read: {second}"
            ) from error


class _LimitedRestCatalog(RestCatalog):
    """A REST catalogue whose requests fail if no answer comes in time."""

    def _config_headers(self, session: Any) -> None:
        # The first that is done with a new session, before it asks for a token.
        super()._config_headers(session)
        limits = (CONNECT_TIMEOUT_S, ANSWER_TIMEOUT_S)
        session.request = partial(session.request, timeout=limits)


def open_catalog(name: str, properties: Mapping[str, str]) -> Catalog:
    """Open a catalogue of pyiceberg. The requests of a REST catalogue fail if no answer comes in
    time."""
    found = merge_config(Config().get_catalog_config(name) or {}, dict(properties))
    is_rest = str(found.get(TYPE, "rest")).lower() == "rest" and PY_CATALOG_IMPL not in properties
    if is_rest and str(found.get(URI, "")).startswith("http"):
        return _LimitedRestCatalog(name, **cast("dict[str, str]", found))
    return load_catalog(name, **properties)


def _has(table: Table, updates: tuple[TableUpdate, ...]) -> bool:
    """Return whether a table has a snapshot of a commit; False for one without snapshots.

    Of several, some may have been expired since. A commit is made whole or not at all.
    """
    added = [each.snapshot.snapshot_id for each in updates if isinstance(each, AddSnapshotUpdate)]
    return any(table.metadata.snapshot_by_id(each) for each in added)


def _may_have(table: Table, before: Table) -> bool:
    """Return whether a table without the snapshots of a commit on ``before`` may have it, now or
    soon: it has the same snapshot as before, so the commit is still possible, or snapshots since
    were expired."""
    base, at = before.metadata.current_snapshot_id, table.metadata.current_snapshot_id
    if at == base:
        return True
    while at is not None and at != base:
        snapshot = table.metadata.snapshot_by_id(at)
        if snapshot is None:
            return True
        at = snapshot.parent_snapshot_id
    return at != base
