"""Rules of layout and size: each takes folders or files and returns complaints, one a line."""

import ast
import re
from collections.abc import Iterable, Iterator
from pathlib import Path

ROOT = Path(__file__).resolve().parents[2]
SRC = ROOT / "src"
PACKAGE = SRC / "cometmq"
TESTS = ROOT / "tests"

FILE_LINES_MAX = 1_000
FUNCTION_LINES_MAX = 80
CLASS_NAME_USES_MAX = 2
CONSTRUCTOR_ARGUMENTS_MAX = 8

#: Words that name nothing: whatever they are put on becomes a drawer.
EMPTY_WORDS = frozenset(
    {"common", "helper", "helpers", "impl", "manager", "misc", "util", "utils"},
)

Function = ast.FunctionDef | ast.AsyncFunctionDef


def python_files(*folders: Path) -> list[Path]:
    """All Python files under the folders, in order, caches left out."""
    return sorted(
        path
        for folder in folders
        for path in folder.rglob("*.py")
        if "__pycache__" not in path.parts
    )


def parse(path: Path) -> ast.Module:
    """The syntax tree of a file."""
    return ast.parse(path.read_text(encoding="utf-8"), filename=str(path))


def files_without_docstring(files: Iterable[Path]) -> list[str]:
    """Files that do not say what they own; an empty file owns nothing."""
    return [
        f"{path}: no module docstring"
        for path in files
        if path.stat().st_size > 0 and ast.get_docstring(parse(path)) is None
    ]


def long_files(files: Iterable[Path]) -> list[str]:
    """Files over FILE_LINES_MAX lines."""
    counted = ((path, len(path.read_text(encoding="utf-8").splitlines())) for path in files)
    return [f"{path}: {lines} lines" for path, lines in counted if lines > FILE_LINES_MAX]


def code_lines(function: Function) -> int:
    """Lines of a function from its `def` to its end, the docstring not counted."""
    assert function.end_lineno is not None
    lines = function.end_lineno - function.lineno + 1
    first = function.body[0]
    if ast.get_docstring(function, clean=False) is not None:
        assert first.end_lineno is not None
        lines -= first.end_lineno - first.lineno + 1
    return lines


def functions(tree: ast.AST) -> Iterator[Function]:
    """Every function of a tree, nested ones too."""
    for node in ast.walk(tree):
        if isinstance(node, Function):
            yield node


def long_functions(files: Iterable[Path]) -> list[str]:
    """Functions over FUNCTION_LINES_MAX lines of code."""
    return [
        f"{path}:{function.lineno}: {function.name} has {code_lines(function)} lines"
        for path in files
        for function in functions(parse(path))
        if code_lines(function) > FUNCTION_LINES_MAX
    ]


def words(name: str) -> set[str]:
    """The words of a snake-case or camel-case name, in lower case."""
    spaced = re.sub(r"(?<=[a-z0-9])(?=[A-Z])", "_", name)
    return {word.lower() for word in re.split(r"[^A-Za-z0-9]+", spaced) if word}


def empty_names(files: Iterable[Path], base: Path) -> list[str]:
    """Folders, modules and classes whose name has one of EMPTY_WORDS."""
    complaints = []
    for path in files:
        parts = path.relative_to(base).with_suffix("").parts
        names = [*parts, *(n.name for n in ast.walk(parse(path)) if isinstance(n, ast.ClassDef))]
        complaints += [f"{path}: {name}" for name in names if words(name) & EMPTY_WORDS]
    return complaints


def class_names_used_often(files: Iterable[Path]) -> list[str]:
    """Return the public classes whose name more than CLASS_NAME_USES_MAX modules define."""
    places: dict[str, list[str]] = {}
    for path in files:
        for node in parse(path).body:
            if isinstance(node, ast.ClassDef) and not node.name.startswith("_"):
                places.setdefault(node.name, []).append(str(path))
    return [
        f"{name}: {', '.join(found)}"
        for name, found in sorted(places.items())
        if len(found) > CLASS_NAME_USES_MAX
    ]


def wide_constructors(files: Iterable[Path]) -> list[str]:
    """Return the constructors with more than CONSTRUCTOR_ARGUMENTS_MAX arguments."""
    complaints = []
    for path in files:
        for node in ast.walk(parse(path)):
            if isinstance(node, Function) and node.name == "__init__":
                names = [each.arg for each in (*node.args.args, *node.args.kwonlyargs)][1:]
                if len(names) > CONSTRUCTOR_ARGUMENTS_MAX:
                    complaints.append(f"{path}:{node.lineno}: {len(names)} arguments")
    return complaints


def callables_set_from_outside(files: Iterable[Path]) -> list[str]:
    """Return the assignments to a callable attribute of another object.

    An attribute counts as callable if some class annotates it with ``Callable``, sets it to a
    lambda, or sets it to an argument of its constructor that is annotated so. Pass the callable to
    the constructor instead, or add it to a list of listeners.
    """
    trees = {path: parse(path) for path in files}
    callables = {
        name for tree in trees.values() for node in ast.walk(tree) for name in _callable_names(node)
    }
    return [
        f"{path}:{target.lineno}: {ast.unparse(target)}"
        for path, tree in trees.items()
        for node in ast.walk(tree)
        for target in _targets(node)
        if target.attr in callables and ast.unparse(target.value) != "self"
    ]


def _targets(node: ast.AST) -> list[ast.Attribute]:
    """Return the attributes that a statement assigns."""
    if isinstance(node, ast.Assign):
        found: list[ast.expr] = []
        for target in node.targets:
            found += target.elts if isinstance(target, ast.Tuple) else [target]
    elif isinstance(node, ast.AnnAssign):
        found = [node.target]
    else:
        return []
    return [target for target in found if isinstance(target, ast.Attribute)]


def _callable_names(node: ast.AST) -> list[str]:
    """Return the attributes of ``self`` that a statement or constructor makes callable."""
    if isinstance(node, Function) and node.name == "__init__":
        given = {
            each.arg
            for each in (*node.args.args, *node.args.kwonlyargs)
            if each.annotation is not None and ast.unparse(each.annotation).startswith("Callable[")
        }
        return [
            target.attr
            for each in ast.walk(node)
            if isinstance(each, ast.Assign) and ast.unparse(each.value) in given
            for target in _targets(each)
        ]
    if isinstance(node, ast.AnnAssign):
        is_callable = ast.unparse(node.annotation).startswith("Callable[")
    else:
        is_callable = isinstance(node, ast.Assign) and isinstance(node.value, ast.Lambda)
    names = [target for target in _targets(node) if ast.unparse(target.value) == "self"]
    return [target.attr for target in names] if is_callable else []
