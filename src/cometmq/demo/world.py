"""The world's administrative regions, from the ISO 3166 tables of pycountry.

pycountry lists countries and subdivisions without populations; the demo invents these from its
seed.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from random import Random

    from cometmq.demo.tables import Row

POPULATION_MAX = 3_000_000


def regions(random: Random) -> list[Row]:
    """Return countries, then their subdivisions: about 5 300 rows of the table ``regions``.

    Raise ModuleNotFoundError if pycountry is not installed (extra ``demo``).
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
