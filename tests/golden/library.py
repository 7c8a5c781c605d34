"""What was captured, ready for tests: frames with what is known of them, and stores to unpack."""

from __future__ import annotations

import json
import tarfile
from pathlib import Path
from typing import Final, TypedDict, cast

HERE: Final = Path(__file__).parent


class GoldenFrame(TypedDict, total=False):
    """A line of `frames/manifest.json`; `answers` and `answers_code` stand in answers only."""

    file: str
    #: Who wrote it: java-client, java-broker, java-namesrv, cpp, ali-ons, go, slave, admin, odd.
    sender: str
    to: str
    code: int
    codec: str
    flag: int
    opaque: int
    body_bytes: int
    what: str
    answers: str
    answers_code: int


class GoldenMessage(TypedDict, total=False):
    """A message that the broker served before its end; absent facts were null."""

    queueId: int
    queueOffset: int
    commitLogOffset: int
    storeSize: int
    keys: str
    tags: str
    msgId: str
    reconsumeTimes: int
    storeTimestamp: int
    bodySize: int
    #: The first 64 bytes of the body.
    body: str


class GoldenTopic(TypedDict):
    """A topic of a store: the limits of each queue (`min`, `max`, by queue id), and messages."""

    queues: dict[str, dict[str, int | str]]
    messages: list[GoldenMessage]


class GoldenStore(TypedDict):
    """A line of `stores/manifest.json`."""

    store: str
    ended_by: str
    files: list[str]
    #: The sizes that a broker must be given to open the store.
    settings: dict[str, int]
    #: Messages that wait in the queue of delay level 18.
    parked_delay_level_18: int
    topics: dict[str, GoldenTopic]


def frames() -> list[GoldenFrame]:
    """All captured frames, in the order of the manifest."""
    text = (HERE / "frames" / "manifest.json").read_text(encoding="utf-8")
    return cast("list[GoldenFrame]", json.loads(text))


def frame_bytes(name: str) -> bytes:
    """The whole frame in a file of the manifest, its two length words included."""
    return (HERE / "frames" / name).read_bytes()


def stores() -> dict[str, GoldenStore]:
    """The stores by name: `clean` and `killed`."""
    text = (HERE / "stores" / "manifest.json").read_text(encoding="utf-8")
    rows = cast("list[GoldenStore]", json.loads(text))
    return {row["store"].partition(".")[0]: row for row in rows}


def unpack_store(name: str, directory: Path) -> Path:
    """Unpacks a store below `directory`; gives the folder that a broker opens."""
    with tarfile.open(HERE / "stores" / f"{name}.tar.gz") as archive:
        # No filter: the archive is our own, and Debian 12's Python 3.11.2 does not know it.
        archive.extractall(directory)
    return directory / "store"
