"""The comparison finds every planted difference, and nothing where there is none."""

from collections.abc import Callable
from itertools import chain

import pytest

from examples.demo.compare import DIFFERENCES_KEPT, compare, digest
from examples.demo.tables import TABLES, Row
from tests.examples.demo.test_script import replay
from tests.examples.demo.worlds import small_script

Tables = dict[str, list[Row]]


def tables() -> Tables:
    script = small_script(users=30)
    edits = chain.from_iterable([*script.initial(), *script.steps(50)])
    return {name: list(rows.values()) for name, rows in replay(edits).items()}


def test_equal_tables_are_equal_in_any_order() -> None:
    base, copy = tables(), tables()
    for rows in copy.values():
        rows.reverse()
    result = compare("social", base, copy)
    assert result.equal
    assert result.differences == ()
    assert result.rows == {name: len(rows) for name, rows in base.items()}
    assert result.digest == digest(base)


def missing(copy: Tables) -> None:
    copy["users"].pop()


def left_over(copy: Tables) -> None:
    copy["users"].append(copy["users"][0] | {"id": "U999999"})


def altered(copy: Tables) -> None:
    copy["regions"][0] = copy["regions"][0] | {"population": -1}


def retyped(copy: Tables) -> None:
    copy["users"][0] = copy["users"][0] | {"level": str(copy["users"][0]["level"])}


def doubled(copy: Tables) -> None:
    copy["users"].append(copy["users"][0])


def widened(copy: Tables) -> None:
    copy["users"][0] = copy["users"][0] | {"extra": 1}


@pytest.mark.parametrize("plant", [missing, left_over, altered, retyped, doubled, widened])
def test_a_planted_difference_is_found(plant: Callable[[Tables], None]) -> None:
    copy = tables()
    plant(copy)
    result = compare("social", tables(), copy)
    assert not result.equal
    assert result.different == 1
    assert len(result.differences) == 1
    (difference,) = result.differences
    assert difference.key in str(difference)


def test_a_difference_says_what_is_different() -> None:
    base, copy = tables(), tables()
    row = copy["regions"][0]
    copy["regions"][0] = row | {"name": "Atlantis"}
    (difference,) = compare("order", base, copy).differences
    assert str(difference) == f"regions {row['code']}: name {row['name']!r} became 'Atlantis'"


def test_only_the_first_differences_are_kept_but_all_are_counted() -> None:
    base = tables()
    result = compare("spark", base, {name: [] for name in TABLES})
    assert result.different == sum(len(rows) for rows in base.values())
    assert len(result.differences) == DIFFERENCES_KEPT
    assert all("missing" in str(difference) for difference in result.differences)


def test_digests_tell_tables_apart() -> None:
    base, copy = tables(), tables()
    copy["users"][3] = copy["users"][3] | {"level": 99}
    assert digest(base) != digest(copy)
    assert digest(base) == digest(tables())
