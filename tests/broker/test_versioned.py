"""A versioned table: values, versions, what changed since when, its file."""

import asyncio
from pathlib import Path

import msgspec
import pytest

from cometmq.broker.tables import REMEMBERED_CHANGES, TableDirectory, TableFormat, VersionedTable
from cometmq.core.clock import Clock, SystemClock, VirtualClock
from cometmq.core.errors import StoreCorrupt
from cometmq.net.tasks import Tasks
from cometmq.protocol.bodies import DataVersion
from cometmq.protocol.fastjson import parse_json


class Fruit(msgspec.Struct, rename="camel", frozen=True):
    """A value whose fields are not in the order of their names."""

    weight_grams: int
    colour: str = "green"


FORMAT = TableFormat("fruits.json", "fruitTable", Fruit, "fruit", notes="eaten")
FILE = b"""{
\t"dataVersion":{
\t\t"counter":2,
\t\t"timestamp":1700000000000
\t},
\t"fruitTable":{
\t\t"apple":{
\t\t\t"colour":"red",
\t\t\t"weightGrams":200
\t\t},
\t\t"pear":{
\t\t\t"colour":"green",
\t\t\t"weightGrams":180
\t\t}
\t}
}"""


class World:
    """One table in a directory."""

    def __init__(self, directory: Path, clock: Clock | None = None) -> None:
        self.path = directory / "fruits.json"
        self.tasks = Tasks()
        place = TableDirectory(str(directory), clock or VirtualClock(), self.tasks)
        self.table = VersionedTable(place, FORMAT)

    async def close(self) -> None:
        await self.tasks.close()
        await self.table.file.close()


async def test_a_table_is_written_and_read(tmp_path: Path) -> None:
    world = World(tmp_path)
    assert not world.table.load()
    assert world.table.put("apple", Fruit(200, "red"))
    assert world.table.put("pear", Fruit(180))
    await world.close()
    assert world.path.read_bytes() == FILE
    again = World(tmp_path)
    assert again.table.load()
    assert again.table.get("apple") == Fruit(200, "red")
    assert again.table.values() == {"apple": Fruit(200, "red"), "pear": Fruit(180)}
    assert again.table.version == DataVersion(2, 1700000000000)
    assert (list(again.table), len(again.table), "pear" in again.table) == (
        ["apple", "pear"],
        2,
        True,
    )
    await again.close()


async def test_only_changes_count(tmp_path: Path) -> None:
    world = World(tmp_path)
    world.table.add_default("apple", Fruit(1))
    world.table.add_default("apple", Fruit(2))
    assert world.table.get("apple") == Fruit(1)
    assert not world.table.put("apple", Fruit(1))
    assert not world.table.delete("pear")
    assert world.table.version.counter == 0
    assert not world.table.file.unsaved
    assert world.table.put("apple", Fruit(3))
    assert world.table.delete("apple")
    assert world.table.version.counter == 2
    assert world.table.get("apple") is None
    await world.close()
    assert parse_json(world.path.read_bytes())["fruitTable"] == {}


async def test_what_changed_since_a_version(tmp_path: Path) -> None:
    world = World(tmp_path)
    table = world.table
    table.add_default("default", Fruit(0))
    versions = [table.version]
    for number, name in enumerate(("a", "b", "a")):
        table.put(name, Fruit(number))
        versions.append(table.version)
    table.delete("b")
    assert table.changed_since(table.version) == {}
    assert table.changed_since(versions[3]) == {}
    assert table.changed_since(versions[2]) == {"a": Fruit(2)}
    assert table.changed_since(versions[0]) == {"a": Fruit(2)}
    assert table.changed_since(DataVersion(99, 0)) is None
    table.all_changed()
    assert table.changed_since(versions[3]) is None
    before = table.version
    for number in range(REMEMBERED_CHANGES):
        table.put("a", Fruit(number))
    assert table.changed_since(before) == {"a": Fruit(REMEMBERED_CHANGES - 1)}
    table.put("a", Fruit(-1))
    assert table.changed_since(before) is None
    await world.close()


async def test_before_the_first_change_nothing_is_remembered(tmp_path: Path) -> None:
    (tmp_path / "fruits.json").write_bytes(FILE)
    world = World(tmp_path)
    world.table.load()
    assert world.table.changed_since(DataVersion(2, 5)) == {}
    assert world.table.changed_since(DataVersion(1, 5)) is None
    await world.close()


async def test_other_spellings_are_brought_into_ours(tmp_path: Path) -> None:
    (tmp_path / "fruits.json").write_bytes(b'{"fruitTable":{"apple":{"grams":5}}}')
    world = World(tmp_path)
    with pytest.raises(StoreCorrupt, match="fruit 'apple'"):
        world.table.load()
    world.table.load(lambda fields: fields.setdefault("weightGrams", fields["grams"]))
    assert world.table.get("apple") == Fruit(5)
    assert world.table.version == DataVersion()
    await world.close()


async def test_a_change_in_the_middle_of_a_write_is_in_the_next(tmp_path: Path) -> None:
    """A long write pauses; what it then meets must not be kept as the text of what came later."""
    world = World(tmp_path, SystemClock())
    for number in range(5_000):
        world.table.add_default(f"fruit-{number}", Fruit(1))
    writing = asyncio.create_task(world.table.file.write())
    await asyncio.sleep(0)
    last = "fruit-4999"
    world.table.put(last, Fruit(2))
    world.table.delete("fruit-4998")
    await writing
    await world.close()
    written = parse_json(world.path.read_bytes())
    assert written["fruitTable"][last]["weightGrams"] == 2
    assert "fruit-4998" not in written["fruitTable"]
    assert written["dataVersion"]["counter"] == 2


async def test_notes_are_kept_beside_the_values(tmp_path: Path) -> None:
    (tmp_path / "fruits.json").write_bytes(FILE)
    world = World(tmp_path)
    world.table.load()
    assert world.table.notes() == {}
    world.table.put_note("plum", 7)
    world.table.put_note("fig", 8)
    world.table.put_note("plum", 9)
    assert world.table.version.counter == 2  # they are no change of the values
    await world.close()
    notes = b',\n\t"eaten":{\n\t\t"fig":8,\n\t\t"plum":9\n\t}\n}'
    assert world.path.read_bytes() == FILE.removesuffix(b"\n}") + notes
    again = World(tmp_path)
    again.table.load()
    assert list(again.table.notes().items()) == [("fig", 8), ("plum", 9)]
    for name in ("plum", "fig"):
        again.table.drop_note(name)
    await again.close()
    assert again.path.read_bytes() == FILE
