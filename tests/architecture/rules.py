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
