"""A small world, so that tests need neither pycountry nor thousands of rows."""

from random import Random

from examples.demo.script import Script, region
from examples.demo.tables import Row


def small_world() -> list[Row]:
    """Two countries with three subdivisions."""
    random = Random(0)
    return [
        region("AD", "AD", "Andorra", "Country", None, random),
        region("FR", "FR", "France", "Country", None, random),
        region("AD-02", "AD", "Canillo", "Parish", None, random),
        region("AD-03", "AD", "Encamp", "Parish", None, random),
        region("FR-75C", "FR", "Paris", "Metropolitan collectivity", "FR-IDF", random),
    ]


def small_script(seed: int = 1, users: int = 4) -> Script:
    """A script over the small world."""
    return Script(small_world(), users, seed)
