"""The simulation's modules import one way, type imports included."""

import grimp
import pytest

PACKAGE = "tests.simulation"
#: From top to bottom; modules of one line are independent of each other.
LAYERS = {
    PACKAGE: ("__main__", "cluster store", "faults search"),
    f"{PACKAGE}.cluster": (
        "run",
        "adversary",
        "brokerfaults",
        "operator",
        "cluster",
        "losses",
        "applications machines nameservers settings surprises",
        "invariants network repairs",
        "clock copies holdings threads trace workload",
        "history loop",
    ),
    f"{PACKAGE}.store": ("__main__", "seeded", "clients", "world", "checks", "history process"),
    f"{PACKAGE}.faults": ("files", "disk threads"),
}


def broken(graph: grimp.ImportGraph, package: str) -> set[grimp.PackageDependency]:
    layers = [set(line.split()) for line in LAYERS[package]]
    return graph.find_illegal_dependencies_for_layers(layers, containers={package})


@pytest.fixture(scope="module")
def graph() -> grimp.ImportGraph:
    return grimp.build_graph("tests", cache_dir=None)


@pytest.mark.parametrize("package", LAYERS)
def test_imports_point_down(graph: grimp.ImportGraph, package: str) -> None:
    assert broken(graph, package) == set()


def test_an_import_that_points_up_is_found(graph: grimp.ImportGraph) -> None:
    package = f"{PACKAGE}.cluster"
    graph.add_import(importer=f"{package}.losses", imported=f"{package}.cluster")
    assert {each.importer for each in broken(graph, package)} == {f"{package}.losses"}
