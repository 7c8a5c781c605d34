"""Folders that move aside at once and leave the disk by and by."""

import asyncio
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import pytest

from cometmq.net.tasks import Tasks
from cometmq.store.files import PosixFiles
from cometmq.store.queue.queuefiles import Removals


def made_topic(root: Path, topic: str = "t") -> str:
    for queue_id in range(3):
        folder = root / topic / str(queue_id)
        folder.mkdir(parents=True)
        (folder / f"{0:020d}").write_bytes(b"entries")
    return str(root / topic)


def names(root: Path) -> list[str]:
    return sorted(path.name for path in (root / ".deleted").glob("*"))


async def until_gone(root: Path) -> None:
    async with asyncio.timeout(60):
        while any(name.startswith("gone-") for name in names(root)):
            await asyncio.sleep(0.001)


async def test_what_is_settled_leaves_the_disk(tmp_path: Path) -> None:
    removals, tasks = Removals(PosixFiles(), str(tmp_path)), Tasks()
    with ThreadPoolExecutor(1) as executor:
        tasks.spawn(removals.run(executor), name="removals")
        aside = removals.set_aside(made_topic(tmp_path))
        assert not (tmp_path / "t").exists()
        assert removals.unfinished
        other = removals.set_aside(made_topic(tmp_path))  # the same name, made anew
        assert names(tmp_path) == ["pending-1", "pending-2"]
        assert (Path(other) / "1" / f"{0:020d}").read_bytes() == b"entries"
        removals.settle(aside)
        await until_gone(tmp_path)
        assert names(tmp_path) == ["pending-2"]
        removals.discard([made_topic(tmp_path) + "/2"])
        await until_gone(tmp_path)
        assert sorted(path.name for path in (tmp_path / "t").iterdir()) == ["0", "1"]
        await tasks.close()


async def test_a_run_goes_on_where_the_last_one_ended(tmp_path: Path) -> None:
    before = Removals(PosixFiles(), str(tmp_path))
    before.settle(before.set_aside(made_topic(tmp_path)))
    before.set_aside(str(tmp_path / "none"))  # a topic without files is pending all the same
    assert names(tmp_path) == ["gone-1", "pending-2"]
    after, tasks = Removals(PosixFiles(), str(tmp_path)), Tasks()
    with ThreadPoolExecutor(1) as executor:
        tasks.spawn(after.run(executor), name="removals")
        await until_gone(tmp_path)
        states = [after.unfinished]
        assert after.set_aside(made_topic(tmp_path)).endswith("pending-3")
        after.settle_all()
        await until_gone(tmp_path)
        assert names(tmp_path) == []
        assert [*states, after.unfinished] == [True, False]
        await tasks.close()


async def test_a_device_that_fails_is_tried_again_with_the_next(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    class Failing(PosixFiles):
        fails = True

        def unlink(self, path: str) -> None:
            if self.fails:
                raise OSError(5, "no")
            super().unlink(path)

    files, tasks = Failing(), Tasks()
    removals = Removals(files, str(tmp_path))
    with ThreadPoolExecutor(1) as executor:
        tasks.spawn(removals.run(executor), name="removals")
        removals.settle(removals.set_aside(made_topic(tmp_path)))
        async with asyncio.timeout(60):
            while "deleted_queues_not_removed" not in caplog.text:
                await asyncio.sleep(0.001)
        files.fails = False
        removals.settle(removals.set_aside(str(tmp_path / "none")))
        await until_gone(tmp_path)
        await tasks.close()


async def test_what_is_no_file_of_a_queue_goes_too(tmp_path: Path) -> None:
    """Else a file beside the queues would keep all deleted topics on the disk."""
    removals, tasks = Removals(PosixFiles(), str(tmp_path)), Tasks()
    topic = Path(made_topic(tmp_path))
    (topic / "0.notes").write_text("mine")
    (topic / "1" / "0").mkdir()
    with ThreadPoolExecutor(1) as executor:
        tasks.spawn(removals.run(executor), name="removals")
        removals.settle(removals.set_aside(str(topic)))
        removals.settle(removals.set_aside(made_topic(tmp_path)))
        await until_gone(tmp_path)
        await tasks.close()
