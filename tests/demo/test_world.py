"""The ISO tables as rows."""

from random import Random

from cometmq.demo.tables import REGIONS
from cometmq.demo.world import region, regions


def test_the_world_has_every_country_and_subdivision() -> None:
    rows = regions(Random(1))
    assert 5_000 < len(rows) < 6_000
    by_code = {row["code"]: row for row in rows}
    assert len(by_code) == len(rows)
    assert by_code["AD"]["name"] == "Andorra"
    assert by_code["AD-02"]["name"] == "Canillo"
    assert {tuple(row) for row in rows} == {REGIONS.names}
    assert all(row["country"] in by_code for row in rows)


def test_the_same_seed_gives_the_same_world() -> None:
    assert regions(Random(5)) == regions(Random(5))
    assert regions(Random(5)) != regions(Random(6))


def test_a_subdivision_without_a_parent_belongs_to_its_country() -> None:
    random = Random(1)
    assert region("AD", "AD", "Andorra", "Country", None, random)["parent"] is None
    assert region("AD-02", "AD", "Canillo", "Parish", None, random)["parent"] == "AD"
    assert region("FR-01", "FR", "Ain", "Department", "FR-ARA", random)["parent"] == "FR-ARA"
