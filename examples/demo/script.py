"""The script of changes that the base-data platform makes, generated from a seed.

It begins with the administrative regions of the ISO 3166 tables; their populations, and users, are
invented from the seed. The script keeps its own copy of the tables, so that every step is
consistent with those before: no user lives in a deleted region, and a key is inserted only while it
is absent. The same seed produces the same steps.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from random import Random
from typing import TYPE_CHECKING, Final

if TYPE_CHECKING:
    from examples.demo.tables import Operation, Row

FIRST_NAMES: Final = (
    *("Aino", "Amara", "Ana", "Bilal", "Chidi", "Dương", "Elif", "Esi", "Fatima", "Goran"),
    *("Hana", "Ines", "Jakub", "Kenji", "Lars", "Leila", "Mateo", "Mei", "Nia", "Noor"),
    *("Óscar", "Priya", "Quinn", "Rafał", "Sofía", "Tāne", "Uma", "Vesna", "Wanjiru", "李娜"),
)
FAMILY_NAMES: Final = (
    *("Abebe", "Bauer", "Costa", "Diallo", "Eriksen", "Farouk", "García", "Haddad", "Ivanova"),
    *("Jovanović", "Kaya", "López", "Mbeki", "Nguyễn", "O'Neill", "Park", "Qureshi", "Rossi"),
    *("Şahin", "Tanaka", "Usman", "Virtanen", "Wang", "Yılmaz", "Zulu", "Ångström"),
)
LEVEL_MAX: Final = 10


@dataclass(frozen=True, slots=True)
class Edit:
    """One change of one row before it has a number; ``row`` is None for a deletion."""

    table: str
    op: Operation
    key: str
    row: Row | None


class Script:
    """Seeded steps over the tables; a step is the edits of one transaction."""

    def __init__(self, regions: Iterable[Row], users: int, seed: int) -> None:
        self._random = Random(seed)
        self._world = list(regions)
        self._first_users = users
        self._regions: dict[str, Row] = {}
        self._users: dict[str, Row] = {}
        self._residents: dict[str, set[str]] = {}
        self._region_codes: list[str] = []
        self._user_ids: list[str] = []
        self._gone: dict[str, Row] = {}
        self._made = 0

    def initial(self) -> Iterator[list[Edit]]:
        """Yield the first load: every region and the first users, one a step. Call this before
        steps."""
        for row in self._world:
            yield [self._put_region("insert", row)]
        for _ in range(self._first_users):
            yield self._insert_user()

    def steps(self, changes: int) -> Iterator[list[Edit]]:
        """Yield steps with at least ``changes`` edits in total."""
        kinds = (
            *((self._update_user, 45), (self._insert_user, 12), (self._delete_user, 9)),
            *((self._update_region, 22), (self._dissolve_region, 6), (self._found_region, 6)),
        )
        done = 0
        choices, weights = zip(*kinds, strict=True)
        while done < changes:
            (step,) = self._random.choices(choices, weights)
            edits = step()
            done += len(edits)
            yield edits

    def _insert_user(self) -> list[Edit]:
        self._made += 1
        key = f"U{self._made:06d}"
        first = self._random.choice(FIRST_NAMES)
        family = self._random.choice(FAMILY_NAMES)
        home = self._regions[self._random.choice(self._region_codes)]
        row: Row = {
            "id": key,
            "name": f"{first} {family}",
            "email": f"{key.lower()}@example.org",
            "country": home["country"],
            "region": home["code"],
            "level": 0,
        }
        self._user_ids.append(key)
        return [self._put_user("insert", row)]

    def _update_user(self) -> list[Edit]:
        if not self._user_ids:
            return self._insert_user()
        row = self._users[self._random.choice(self._user_ids)]
        if self._random.random() < 0.5:
            return [self._move(row, self._random.choice(self._region_codes))]
        level = (int(row["level"] or 0) + 1) % LEVEL_MAX
        return [self._put_user("update", row | {"level": level})]

    def _delete_user(self) -> list[Edit]:
        if not self._user_ids:
            return self._insert_user()
        key = self._take(self._user_ids)
        row = self._users.pop(key)
        self._residents[str(row["region"])].discard(key)
        return [Edit("users", "delete", key, None)]

    def _update_region(self) -> list[Edit]:
        row = self._regions[self._random.choice(self._region_codes)]
        return [self._put_region("update", row | {"population": self._population()})]

    def _dissolve_region(self) -> list[Edit]:
        """Delete a subdivision, after its residents are moved to the country."""
        code = self._take(self._region_codes)
        row = self._regions[code]
        country = str(row["country"])
        if code == country:
            self._region_codes.append(code)
            return self._update_region()
        residents = sorted(self._residents.get(code, ()))
        moves = [self._move(self._users[key], country) for key in residents]
        self._gone[code] = self._regions.pop(code)
        return [*moves, Edit("regions", "delete", code, None)]

    def _found_region(self) -> list[Edit]:
        """Insert a deleted region again under its code, or a new one."""
        if self._gone and self._random.random() < 0.7:
            code = self._random.choice(sorted(self._gone))
            row = self._gone.pop(code) | {"population": self._population()}
            return [self._put_region("insert", row)]
        self._made += 1
        country = str(self._regions[self._random.choice(self._region_codes)]["country"])
        name = f"New Region {self._made}"
        code = f"{country}-N{self._made}"
        return [self._put_region("insert", region(code, country, name, "New", None, self._random))]

    def _move(self, row: Row, code: str) -> Edit:
        home = self._regions[code]
        self._residents[str(row["region"])].discard(str(row["id"]))
        return self._put_user("update", row | {"region": code, "country": home["country"]})

    def _put_user(self, op: Operation, row: Row) -> Edit:
        key = str(row["id"])
        self._users[key] = row
        self._residents.setdefault(str(row["region"]), set()).add(key)
        return Edit("users", op, key, row)

    def _put_region(self, op: Operation, row: Row) -> Edit:
        code = str(row["code"])
        if op == "insert":
            self._region_codes.append(code)
        self._regions[code] = row
        return Edit("regions", op, code, row)

    def _population(self) -> int:
        return self._random.randrange(100, POPULATION_MAX)

    def _take(self, keys: list[str]) -> str:
        """Remove and return a random key in constant time: the last key takes its place."""
        at = self._random.randrange(len(keys))
        keys[at], keys[-1] = keys[-1], keys[at]
        return keys.pop()


POPULATION_MAX = 3_000_000


def iso_regions(random: Random) -> list[Row]:
    """Return countries, then their subdivisions: about 5 300 rows of the table ``regions``.

    Raise ModuleNotFoundError if pycountry is not installed.
    """
    import pycountry

    rows = [
        region(country.alpha_2, country.alpha_2, country.name, "Country", None, random)
        for country in pycountry.countries
    ]
    rows += [
        region(part.code, part.country_code, part.name, part.type, part.parent_code, random)
        for part in pycountry.subdivisions
    ]
    return rows


def region(
    code: str, country: str, name: str, kind: str, parent: str | None, random: Random
) -> Row:
    """Return one row; a subdivision without a parent belongs to its country."""
    if parent is None and code != country:
        parent = country
    return {
        "code": code,
        "country": country,
        "name": name,
        "kind": kind,
        "parent": parent,
        "population": random.randrange(100, POPULATION_MAX),
    }
