"""Key-value tables: what was answered is on disk, and unreadable files are noticed."""

import asyncio
import json
from pathlib import Path

import pytest

from cometmq.core.errors import BadRequest, CometError, StoreCorrupt
from cometmq.namesrv import kv as kv_module
from cometmq.namesrv.kv import KvTables
from cometmq.store.files import PosixFiles


class CountingFiles(PosixFiles):
    """Counts replacements, and fails them when told to."""

    def __init__(self) -> None:
        self.renames: list[str] = []
        self.error: OSError | None = None

    def replace(self, source: str, target: str) -> None:
        self.rename(source, target)

    def rename(self, source: str, target: str) -> None:
        if self.error is not None:
            raise self.error
        self.renames.append(Path(target).name)
        super().rename(source, target)


@pytest.fixture
def path(tmp_path: Path) -> Path:
    return tmp_path / "namesrv" / "kvConfig.json"


def reopened(path: Path) -> KvTables:
    kv = KvTables(path)
    kv.load()
    return kv


def read(path: Path) -> bytes:
    return path.read_bytes()


def write(path: Path, data: bytes) -> None:
    path.write_bytes(data)


def remove(path: Path) -> None:
    path.unlink()


def backup_of(path: Path) -> Path:
    return path.with_name(path.name + ".bak")


async def test_keys_are_kept(path: Path) -> None:
    kv = reopened(path)
    assert kv.table("n") is None
    assert kv.get("n", "k") is None
    await kv.put("n", "k", "v")
    await kv.put("n", "other", "w")
    await kv.delete("n", "k")
    await kv.delete("n", "never set")
    await kv.delete("never set", "k")
    for tables in (kv, reopened(path)):
        assert tables.table("n") == {"other": "w"}
        assert tables.get("n", "other") == "w"
        assert tables.get("n", "k") is None


async def test_the_file_is_upstreams(path: Path) -> None:
    await reopened(path).put("ORDER_TOPIC_CONFIG", "t", "broker-a:4")
    assert read(path) == b'{"configTable":{"ORDER_TOPIC_CONFIG":{"t":"broker-a:4"}}}'
    write(path, b'{\n\t"configTable":{"n":{"k":"v"}\n\t}\n}')
    assert reopened(path).get("n", "k") == "v"


async def test_the_backup_stands_in_for_a_broken_file(path: Path) -> None:
    kv = reopened(path)
    await kv.put("n", "k", "old")
    await kv.put("n", "k", "new")
    write(path, b'{"configTable":{"n"')
    kv = reopened(path)
    assert kv.get("n", "k") == "old"
    # The broken file does not become the backup.
    await kv.put("n", "k", "newer")
    assert json.loads(read(backup_of(path))) == {"configTable": {"n": {"k": "old"}}}
    assert reopened(path).get("n", "k") == "newer"


async def test_the_backup_stands_in_for_a_missing_file(path: Path) -> None:
    kv = reopened(path)
    await kv.put("n", "k", "old")
    await kv.put("n", "k", "new")
    remove(path)
    assert reopened(path).get("n", "k") == "old"


def test_a_file_that_nobody_can_read_is_an_error(path: Path) -> None:
    path.parent.mkdir()
    write(path, b"{")
    with pytest.raises(StoreCorrupt, match="move it away to start without its keys") as info:
        reopened(path)
    assert info.value.path == str(path)
    write(backup_of(path), b'{"configTable":5}')
    with pytest.raises(StoreCorrupt) as info:
        reopened(path)
    assert info.value.path == str(path)


async def test_changes_that_come_together_are_written_together(path: Path) -> None:
    files = CountingFiles()
    kv = KvTables(path, files)
    await asyncio.gather(*(kv.put("n", f"k{number}", "v") for number in range(50)))
    assert files.renames.count("kvConfig.json") <= 2
    assert len(reopened(path).table("n") or {}) == 50


async def test_a_change_that_cannot_be_written_is_told(path: Path) -> None:
    files = CountingFiles()
    kv = KvTables(path, files)
    files.error = OSError(28, "No space left on device")
    with pytest.raises(CometError, match=r"cannot be written \(No space left on device\)"):
        await kv.put("n", "k", "v")
    assert kv.get("n", "k") == "v"
    files.error = None
    await kv.put("n", "other", "w")
    assert reopened(path).table("n") == {"k": "v", "other": "w"}


# ------------------------------------------------------------------------------------- bounds


@pytest.mark.parametrize(
    ("namespace", "key", "value", "problem"),
    [
        ("n" * 513, "k", "v", "the namespace has 513 characters"),
        ("n", "k" * 513, "v", "the key has 513 characters"),
        ("n", "k", "v" * 65_537, "the value has 65537 characters"),
    ],
)
async def test_long_texts_are_refused(
    path: Path, namespace: str, key: str, value: str, problem: str
) -> None:
    kv = reopened(path)
    with pytest.raises(BadRequest, match=problem):
        await kv.put(namespace, key, value)
    assert kv.table(namespace) is None


async def test_all_keys_together_are_bounded(path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(kv_module, "TOTAL_LENGTH_MAX", 100)
    kv = reopened(path)
    await kv.put("n", "a", "v" * 33)
    await kv.put("n", "b", "v" * 33)
    for tables in (kv, reopened(path)):
        with pytest.raises(BadRequest, match="all keys and values would have 101 characters"):
            await tables.put("n", "b", "v" * 34)
        with pytest.raises(BadRequest, match="117 characters"):
            await tables.put("m", "a", "")
        assert tables.table("n") == {"a": "v" * 33, "b": "v" * 33}
    await kv.put("n", "a", "w")
    await kv.delete("n", "b")
    await kv.put("m", "c", "v" * 60)


async def test_namespaces_are_bounded(path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(kv_module, "NAMESPACES_MAX", 2)
    kv = reopened(path)
    for namespace in ("a", "b"):
        await kv.put(namespace, "k", "v")
        await kv.delete(namespace, "k")
    with pytest.raises(BadRequest, match="there are 2 namespaces"):
        await kv.put("c", "k", "v")
    await kv.put("a", "k", "v")
