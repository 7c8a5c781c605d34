"""Files of consume queues that are short, gone or another topic's."""

import shutil
from pathlib import Path

from tests.store.sealed import FILE_BYTES
from tests.store.stores import fill, opened
from tests.store.tools.verifying import (
    damage,
    kinds,
    verified,
)


def test_a_queue_that_ends_early(unsealed: Path) -> None:
    path = sorted((unsealed / "consumequeue" / "t" / "1").iterdir())[-1]
    raw = path.read_bytes()
    end = len(raw.rstrip(b"\0"))
    end -= end % 20
    path.write_bytes(raw[: end - 200].ljust(len(raw), b"\0"))
    (found,) = damage(verified(unsealed))
    assert found.kind == "record-without-entry"
    # After a crash the next start sees to it.
    (unsealed / "abort").touch()
    assert kinds(verified(unsealed)) == {"crashed", "queue-behind"}


def test_files_of_a_queue_that_are_gone_or_too_short(unsealed: Path) -> None:
    first, second = sorted((unsealed / "consumequeue" / "t" / "1").iterdir())
    second.write_bytes(second.read_bytes()[:-20])
    assert {"queue-file-size"} <= kinds(verified(unsealed))
    second.unlink()
    assert {"record-without-entry"} <= kinds(verified(unsealed))
    first.rename(first.with_name(f"{20_000:020d}"))
    assert not verified(unsealed).is_sound
    third = unsealed / "consumequeue" / "t" / "2"
    paths = sorted(third.iterdir())
    paths[1].rename(paths[1].with_name(f"{30_000:020d}"))
    assert "queue-file-missing" in kinds(verified(unsealed))


def test_a_topic_whose_queues_are_gone(unsealed: Path) -> None:
    shutil.rmtree(unsealed / "consumequeue" / "t")
    found = verified(unsealed)
    assert found.is_sound
    assert kinds(found) == {"deleted-topic"}
    (unsealed / "config").mkdir()
    table = unsealed / "config" / "topics.json"
    table.write_text('{"topicConfigTable":{"t":{"topicName":"t"}}}')
    assert kinds(verified(unsealed)) == {"record-without-entry"}
    (unsealed / "abort").touch()
    assert kinds(verified(unsealed)) == {"crashed", "queue-behind"}


async def test_a_topic_that_was_made_anew(tmp_path: Path) -> None:
    store = opened(tmp_path, mapped_file_size_commit_log=FILE_BYTES)
    fill(store, 300, queues=1)
    await store.deletions.settle(store.deletions.delete("t"))
    fill(store, 20, queues=1, first=1_000)
    store.close()
    found = verified(tmp_path)
    assert found.is_sound
    assert kinds(found) == {"deleted-topic"}
