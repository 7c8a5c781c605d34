"""The regions are rows, and the script of changes always fits the tables that it changes."""

from collections import Counter
from collections.abc import Iterable
from itertools import chain
from random import Random

from hypothesis import given
from hypothesis import strategies as st

from examples.demo.script import Edit, iso_regions, region
from examples.demo.tables import REGIONS, TABLES, Row
from tests.examples.demo.worlds import small_script


def replay(edits: Iterable[Edit]) -> dict[str, dict[str, Row]]:
    """Apply edits to empty tables, complaining about every one that does not fit."""
    tables: dict[str, dict[str, Row]] = {name: {} for name in TABLES}
    for edit in edits:
        rows = tables[edit.table]
        assert (edit.key in rows) == (edit.op != "insert"), edit
        assert (edit.row is None) == (edit.op == "delete"), edit
        if edit.row is None:
            del rows[edit.key]
        else:
            assert tuple(edit.row) == TABLES[edit.table].names
            rows[edit.key] = edit.row
    return tables


@given(seed=st.integers(0, 10_000), users=st.integers(0, 8), changes=st.integers(0, 300))
def test_every_step_fits_what_went_before(seed: int, users: int, changes: int) -> None:
    script = small_script(seed, users)
    steps = [*script.initial(), *script.steps(changes)]
    tables = replay(chain.from_iterable(steps))
    for user in tables["users"].values():
        home = tables["regions"][str(user["region"])]
        assert user["country"] == home["country"]


def test_the_same_seed_gives_the_same_steps() -> None:
    def steps(seed: int) -> list[list[Edit]]:
        script = small_script(seed)
        return [*script.initial(), *script.steps(200)]

    assert steps(3) == steps(3)
    assert steps(3) != steps(4)


def test_all_operations_happen_and_deleted_rows_come_back() -> None:
    script = small_script(users=50)
    edits = list(chain.from_iterable([*script.initial(), *script.steps(2_000)]))
    kinds = Counter((edit.table, edit.op) for edit in edits)
    assert all(kinds[table, op] > 5 for table in TABLES for op in ("insert", "update", "delete")), (
        kinds
    )
    inserts = Counter(edit.key for edit in edits if edit.op == "insert")
    assert max(inserts.values()) > 1


def test_a_step_makes_at_least_the_changes_asked_for() -> None:
    script = small_script()
    list(script.initial())
    made = sum(len(step) for step in script.steps(100))
    assert 100 <= made < 150


def test_the_world_has_every_country_and_subdivision() -> None:
    rows = iso_regions(Random(1))
    assert 5_000 < len(rows) < 6_000
    by_code = {row["code"]: row for row in rows}
    assert len(by_code) == len(rows)
    assert by_code["AD"]["name"] == "Andorra"
    assert by_code["AD-02"]["name"] == "Canillo"
    assert {tuple(row) for row in rows} == {REGIONS.names}
    assert all(row["country"] in by_code for row in rows)


def test_the_same_seed_gives_the_same_world() -> None:
    assert iso_regions(Random(5)) == iso_regions(Random(5))
    assert iso_regions(Random(5)) != iso_regions(Random(6))


def test_a_subdivision_without_a_parent_belongs_to_its_country() -> None:
    random = Random(1)
    assert region("AD", "AD", "Andorra", "Country", None, random)["parent"] is None
    assert region("AD-02", "AD", "Canillo", "Parish", None, random)["parent"] == "AD"
    assert region("FR-01", "FR", "Ain", "Department", "FR-ARA", random)["parent"] == "FR-ARA"
