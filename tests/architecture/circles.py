"""Import circles: modules that import each other, directly or through others, type imports too."""

import ast
from collections.abc import Callable
from pathlib import Path

from tests.architecture.rules import parse, python_files


def imports(root: Path) -> dict[str, set[str]]:
    """Return the modules that each module below ``root`` imports, of those below ``root``."""
    modules = {module_name(path, root): path for path in python_files(root)}
    found: dict[str, set[str]] = {}
    for module, path in modules.items():
        named: set[str] = set()
        for node in ast.walk(parse(path)):
            if isinstance(node, ast.Import):
                named.update(alias.name for alias in node.names)
            elif isinstance(node, ast.ImportFrom) and node.module is not None:
                for alias in node.names:
                    inner = f"{node.module}.{alias.name}"
                    named.add(inner if inner in modules else node.module)
        found[module] = (named & modules.keys()) - {module}
    return found


def module_name(path: Path, root: Path) -> str:
    """Return the dotted name of a file."""
    parts = path.relative_to(root).with_suffix("").parts
    return ".".join(parts[:-1] if parts[-1] == "__init__" else parts)


def circles(graph: dict[str, set[str]]) -> list[list[str]]:
    """Return the groups of modules that reach each other, each sorted (Kosaraju's algorithm)."""
    order: list[str] = []
    seen: set[str] = set()
    for start in graph:
        _visit(start, graph, seen, order.append)
    reverse: dict[str, set[str]] = {module: set() for module in graph}
    for module, targets in graph.items():
        for target in targets:
            reverse[target].add(module)
    found = []
    seen = set()
    for start in reversed(order):
        group: list[str] = []
        _visit(start, reverse, seen, group.append)
        if len(group) > 1:
            found.append(sorted(group))
    return sorted(found)


def _visit(
    start: str, graph: dict[str, set[str]], seen: set[str], leave: Callable[[str], None]
) -> None:
    """Walk depth first from ``start`` and call ``leave`` with each module after its targets."""
    if start in seen:
        return
    seen.add(start)
    stack = [(start, iter(sorted(graph[start])))]
    while stack:
        module, targets = stack[-1]
        following = next((target for target in targets if target not in seen), None)
        if following is None:
            stack.pop()
            leave(module)
        else:
            seen.add(following)
            stack.append((following, iter(sorted(graph[following]))))
