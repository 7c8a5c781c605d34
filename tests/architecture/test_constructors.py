"""Constructors stay small, and no object sets a callable of another from outside."""

from __future__ import annotations

import ast

import pytest

from tests.architecture.rules import SRC

MAX_ARGUMENTS = 8
#: Classes whose constructors have more, as "path:class".
LONG_CONSTRUCTORS: set[str] = set()

#: Assignments of a callable of another object, as "path:target".
SET_FROM_OUTSIDE: set[str] = set()

SOURCES = {
    path.relative_to(SRC / "cometmq").as_posix(): path.read_text(encoding="utf-8")
    for path in sorted((SRC / "cometmq").rglob("*.py"))
}


def _callable_names(trees: dict[str, ast.Module]) -> set[str]:
    """Return the names that stand for a Callable type: ``Hearer = Callable[...]``."""
    names = {"Callable"}
    for tree in trees.values():
        for node in tree.body:
            if not isinstance(node, ast.Assign) or not isinstance(node.value, ast.Subscript):
                continue
            if ast.unparse(node.value.value) == "Callable":
                names.update(each.id for each in node.targets if isinstance(each, ast.Name))
    return names


def _mentions(annotation: ast.expr | None, names: set[str]) -> bool:
    if annotation is None:
        return False
    # A container of callables is no callable, nor is an annotation of what a callable returns.
    if isinstance(annotation, ast.Subscript):
        return ast.unparse(annotation.value) in names
    if isinstance(annotation, ast.BinOp):
        return _mentions(annotation.left, names) or _mentions(annotation.right, names)
    if isinstance(annotation, ast.Constant) and isinstance(annotation.value, str):
        return _mentions(ast.parse(annotation.value, mode="eval").body, names)
    return isinstance(annotation, ast.Name) and annotation.id in names


def _of_self(node: ast.AST) -> str:
    """Return the name of an attribute of self; "" for anything else."""
    if not isinstance(node, ast.Attribute) or not isinstance(node.value, ast.Name):
        return ""
    return node.attr if node.value.id == "self" else ""


def _callable_attributes(owner: ast.ClassDef, names: set[str]) -> set[str]:
    """Return the attributes of a class that hold a callable: those annotated as one, and those that
    it sets and calls. The keys of a TypedDict are no attributes."""
    if any(ast.unparse(base) == "TypedDict" for base in owner.bases):
        return set()
    annotated, assigned, called = set(), set(), set()
    for node in ast.walk(owner):
        if isinstance(node, ast.AnnAssign):
            target = node.target
            name = target.id if isinstance(target, ast.Name) else _of_self(target)
            assigned.add(name)
            if _mentions(node.annotation, names):
                annotated.add(name)
        elif isinstance(node, ast.Assign):
            assigned.update(_of_self(target) for target in node.targets)
        elif isinstance(node, ast.Call):
            called.add(_of_self(node.func))
    return (annotated | (assigned & called)) - {""}


def _assigned_attributes(tree: ast.Module) -> list[ast.Attribute]:
    """Return the attributes that are targets of assignments."""
    targets: list[ast.expr] = []
    for node in ast.walk(tree):
        if isinstance(node, ast.Assign):
            targets += node.targets
        elif isinstance(node, ast.AnnAssign):
            targets.append(node.target)
    return [target for target in targets if isinstance(target, ast.Attribute)]


def set_from_outside(sources: dict[str, str]) -> set[str]:
    """Return the places where a callable attribute of another object is assigned."""
    trees = {name: ast.parse(text) for name, text in sources.items()}
    names = _callable_names(trees)
    attributes: set[str] = set()
    for tree in trees.values():
        for owner in ast.walk(tree):
            if isinstance(owner, ast.ClassDef):
                attributes |= _callable_attributes(owner, names)
    found = set()
    for name, tree in trees.items():
        for target in _assigned_attributes(tree):
            if target.attr in attributes and not _of_self(target):
                found.add(f"{name}:{ast.unparse(target)}")
    return found


def long_constructors(sources: dict[str, str]) -> set[str]:
    """Return the classes whose constructor takes more than MAX_ARGUMENTS arguments."""
    found = set()
    for name, text in sources.items():
        for owner in ast.walk(ast.parse(text)):
            if not isinstance(owner, ast.ClassDef):
                continue
            for method in owner.body:
                if isinstance(method, ast.FunctionDef) and method.name == "__init__":
                    taken = method.args
                    count = len(taken.posonlyargs) + len(taken.args) + len(taken.kwonlyargs) - 1
                    if count > MAX_ARGUMENTS:
                        found.add(f"{name}:{owner.name}")
    return found


def test_no_callable_is_set_from_outside() -> None:
    assert set_from_outside(SOURCES) == SET_FROM_OUTSIDE


def test_constructors_take_few_arguments() -> None:
    assert long_constructors(SOURCES) == LONG_CONSTRUCTORS


@pytest.mark.parametrize(
    "attribute",
    [
        "        self.on_end: Callable[[int], None] = print\n",
        "        self.on_end: Callable[[int], None] | None = None\n",
        "        self.on_end: 'Callable[[int], None]' = print\n",
        "        self.on_end: Hearer | None = None\n",
        "        self.on_end = given if given else print\n        self.on_end(1)\n",
    ],
)
def test_a_planted_callable_is_found(attribute: str) -> None:
    sources = {
        "a.py": "Hearer = Callable[[int], None]\n"
        f"class Worker:\n    def __init__(self, given: Hearer) -> None:\n{attribute}",
        "b.py": "def use(worker: Worker) -> None:\n    worker.on_end = print\n",
        "c.py": "class Other:\n    def use(self) -> None:\n        self.on_end = print\n",
    }
    assert set_from_outside(sources) == {"b.py:worker.on_end"}


def test_values_and_lists_may_be_set_from_outside() -> None:
    sources = {
        "a.py": "class Worker:\n    def __init__(self) -> None:\n        self.size: int = 0\n"
        "        self.on_end: list[Callable[[int], None]] = []\n",
        "b.py": "worker.size = 1\nworker.on_end = []\n",
    }
    assert set_from_outside(sources) == set()


@pytest.mark.parametrize(("count", "found"), [(8, set()), (9, {"a.py:Worker"})])
def test_a_planted_constructor_is_found(count: int, found: set[str]) -> None:
    taken = ", ".join(f"a{number}" for number in range(count - 2))
    text = f"class Worker:\n    def __init__(self, {taken}, *, b, c): pass\n"
    assert long_constructors({"a.py": text}) == found
