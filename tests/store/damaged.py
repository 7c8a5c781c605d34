"""A store after a crash, with damage made to its log."""

from __future__ import annotations

from pathlib import Path

from cometmq.message.record import Record
from cometmq.store.config import DamagePolicy
from cometmq.store.messagestore import MessageStore
from tests.store.stores import OtherBoot, copied, fill, log_of, opened, run_round

SKIP, TRUNCATE = DamagePolicy.SKIP, DamagePolicy.TRUNCATE
FILE_BYTES = 16_384


class Crashed:
    """A store after a crash: ``synced`` up to 130 messages, ``durable`` up to 190, 200 written."""

    def __init__(self, root: Path) -> None:
        store = opened(root / "s")
        fill(store, 130)
        run_round(store, thorough=True)
        self.synced = store.dispatched_offset
        fill(store, 60, first=130)
        store.flusher.sync_now()
        run_round(store)
        self.durable = store.durable_offset
        fill(store, 10, first=190)
        self.end = store.written_offset
        self.records = log_of(store)
        self.root = copied(root / "s", "crashed")
        store.close()

    def damaged(self, number: int, at: int = 4, data: bytes = b"\0") -> Record:
        """Change bytes of a record in the file; gives the record as it was."""
        record = self.records[number]
        offset = record.physical_offset
        path = self.root / "commitlog" / f"{offset // FILE_BYTES * FILE_BYTES:020d}"
        raw = bytearray(path.read_bytes())
        raw[offset % FILE_BYTES + at : offset % FILE_BYTES + at + len(data)] = data
        path.write_bytes(raw)
        return record

    def open(self, policy: DamagePolicy = DamagePolicy.REFUSE) -> MessageStore:
        """As after the machine was started again."""
        return opened(self.root, files=OtherBoot(), damage_policy=policy)

    def aside(self) -> dict[str, bytes]:
        """What was set aside, by its name without the time."""
        folder = self.root / "cometmq-set-aside"
        return {p.name.partition("-")[2]: p.read_bytes() for p in sorted(folder.glob("*"))}

    def log_files(self) -> dict[str, bytes]:
        """The files of the log."""
        folder = self.root / "commitlog"
        return {path.name: path.read_bytes() for path in folder.iterdir()}


def numbers(store: MessageStore) -> list[int]:
    """The numbers of the messages in the log, in order."""
    return [int(record.body[:6]) for record in log_of(store) if record.topic == "t"]
