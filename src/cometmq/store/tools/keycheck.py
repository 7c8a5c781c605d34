"""Checks of index entries against the records of one log file, in both directions."""

from __future__ import annotations

from collections import Counter
from typing import TYPE_CHECKING

import numpy as np

from cometmq.store.tools.indexes import IndexFact, IndexRun, read_index

if TYPE_CHECKING:
    from cometmq.message.walk import Ints
    from cometmq.store.files import ReadOnlyFiles
    from cometmq.store.tools.findings import Findings
    from cometmq.store.tools.logfile import Chunk

_SECONDS_MAX = 0x7FFF_FFFF
_TOLD = 20


class KeyCheck:
    """The index entries that point to one log file, matched with their records.

    ``late`` counts keys of records after the last indexed one, ``early`` keys of records before the
    first; ``late_from`` is the offset of the first late record, -1 if there is none.
    """

    def __init__(
        self,
        files: ReadOnlyFiles,
        facts: list[IndexFact],
        runs: list[IndexRun],
        bounds: tuple[int, int],
        path: str,
        findings: Findings,
    ) -> None:
        self._facts = facts
        self._bounds = bounds
        self._path = path
        self._findings = findings
        self.keys = 0
        self.late = 0
        self.late_from = -1
        self.early = 0
        self._load(files, runs)

    def _load(self, files: ReadOnlyFiles, runs: list[IndexRun]) -> None:
        parts = [read_index(files, self._facts[run.number], run.first, run.length) for run in runs]
        none = np.empty(0, np.int64)
        self._phys = np.concatenate([none, *(part.phys for part in parts)])
        self._hashes = np.concatenate([none, *(part.hashes for part in parts)])
        self._seconds = np.concatenate([none, *(part.seconds for part in parts)])
        owners = [np.full(run.length, run.number) for run in runs]
        self._owners = np.concatenate([none, *owners])
        if (np.diff(self._phys) < 0).any():
            order = np.argsort(self._phys, kind="stable")
            self._phys, self._hashes = self._phys[order], self._hashes[order]
            self._seconds, self._owners = self._seconds[order], self._owners[order]
        self._begin_ms = np.array([fact.begin_ms for fact in self._facts], np.int64)
        self._seen = np.zeros(len(self._phys), np.bool_)

    def take(self, chunk: Chunk) -> None:
        """Compare the entries of a chunk's records with their keys."""
        rows, hashes = chunk.key_rows, chunk.key_hashes
        self.keys += len(rows)
        places = chunk.places[rows]
        start, stop = int(chunk.places[0]), int(chunk.places[-1] + chunk.sizes[-1])
        low, high = np.searchsorted(self._phys, (start, stop)).tolist()
        self._seen[low:high] = True
        phys = self._phys[low:high]
        same = len(phys) == len(places)
        if not (same and (phys == places).all() and (self._hashes[low:high] == hashes).all()):
            self._tell_differences(places, hashes, low, high)
            if not same:
                return
        self._check_times(chunk.store_ms[rows], places, low, high)

    def _check_times(self, store_ms: Ints, places: Ints, low: int, high: int) -> None:
        if low == high:
            return
        begin_ms = self._begin_ms[self._owners[low:high]]
        seconds = np.clip((store_ms - begin_ms) // 1000, 0, _SECONDS_MAX)
        wrong = (seconds != self._seconds[low:high]) & (self._phys[low:high] == places)
        for at in np.flatnonzero(wrong)[:_TOLD]:
            self._findings.damage(
                "index-entry-time", self._owner(low + int(at)), int(places[at]),
                f"an entry says {self._seconds[low + at]} s behind the file's first record, "
                f"the record says {seconds[at]}",
            )  # fmt: skip

    def _owner(self, entry: int) -> str:
        return self._facts[int(self._owners[entry])].path

    def _tell_differences(self, places: Ints, hashes: Ints, low: int, high: int) -> None:
        expected = Counter(zip(places.tolist(), hashes.tolist(), strict=True))
        actual = Counter(
            zip(self._phys[low:high].tolist(), self._hashes[low:high].tolist(), strict=True)
        )
        for (place, key_hash), amount in (expected - actual).items():
            self._missing(place, key_hash, amount)
        for (place, key_hash), amount in (actual - expected).items():
            entry = low + int(np.searchsorted(self._phys[low:high], place))
            if (place, key_hash) in expected:
                self._findings.note(
                    "index-entry-twice", self._owner(entry), place,
                    f"hash {key_hash} of that record stands there {amount} times more", amount,
                )  # fmt: skip
            else:
                self._findings.damage(
                    "index-entry-wrong", self._owner(entry), place,
                    f"no key of the record there has hash {key_hash}", amount,
                )  # fmt: skip

    def _missing(self, place: int, key_hash: int, amount: int) -> None:
        first, last = self._bounds
        # The index may have ended between two keys of one record.
        if place >= last:
            self.late += amount
            if self.late_from < 0 or place < self.late_from:
                self.late_from = place
        elif place < first:
            self.early += amount
        else:
            self._findings.damage(
                "index-entry-missing", self._path, place,
                f"the index has no entry with hash {key_hash} for the record there", amount,
            )  # fmt: skip

    def finish(self, *, is_clean: bool) -> None:
        """Report the entries whose record was not read."""
        for entry in np.flatnonzero(~self._seen):
            add = self._findings.damage if is_clean else self._findings.note
            add(
                "index-entry-nowhere", self._owner(int(entry)), int(self._phys[entry]),
                "an entry is for a record that is not there",
            )  # fmt: skip
