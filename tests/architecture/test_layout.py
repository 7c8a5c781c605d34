"""Every module says what it owns, has a telling name, and a bounded size."""

from pathlib import Path

import pytest

from tests.architecture import rules

OWN_FILES = rules.python_files(
    rules.SRC, rules.TESTS, rules.ROOT / "scripts", rules.ROOT / "benchmarks"
)


def plant(folder: Path, name: str, text: str) -> Path:
    path = folder / name
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text(text, encoding="utf-8")
    return path


def test_every_module_says_what_it_owns() -> None:
    assert rules.files_without_docstring(OWN_FILES) == []


def test_a_module_without_docstring_is_found(tmp_path: Path) -> None:
    plant(tmp_path, "empty.py", "")
    silent = plant(tmp_path, "silent.py", "x = 1\n")
    assert rules.files_without_docstring(rules.python_files(tmp_path)) == [
        f"{silent}: no module docstring"
    ]


def test_no_file_is_too_long() -> None:
    assert rules.long_files(OWN_FILES) == []


@pytest.mark.parametrize(
    ("lines", "found"), [(rules.FILE_LINES_MAX, 0), (rules.FILE_LINES_MAX + 1, 1)]
)
def test_a_long_file_is_found(tmp_path: Path, lines: int, found: int) -> None:
    path = plant(tmp_path, "long.py", "x = 1\n" * lines)
    assert len(rules.long_files([path])) == found


def test_no_function_is_too_long() -> None:
    assert rules.long_functions(OWN_FILES) == []


@pytest.mark.parametrize(
    ("statements", "found"), [(rules.FUNCTION_LINES_MAX - 1, 0), (rules.FUNCTION_LINES_MAX, 1)]
)
@pytest.mark.parametrize("keyword", ["def", "async def"])
def test_a_long_function_is_found(
    tmp_path: Path, keyword: str, statements: int, found: int
) -> None:
    docstring = '    """One.\n\n    Two.\n    """\n'
    body = "        x = 1\n" * statements
    inner = f"    {keyword} inner():\n    {docstring.replace(chr(10), chr(10) + '    ').rstrip()}\n"
    path = plant(tmp_path, "long.py", f"class Outer:\n{inner}{body}")
    assert len(rules.long_functions([path])) == found


def test_names_say_something() -> None:
    assert rules.empty_names(rules.python_files(rules.SRC), rules.SRC) == []


@pytest.mark.parametrize(
    ("name", "text", "found"),
    [
        ("store/utils.py", "", 1),
        ("common/x.py", "", 1),
        ("store/queue_helper.py", "", 1),
        ("store/queue.py", "class OffsetManager: ...", 1),
        ("store/queue.py", "class DefaultQueueImpl: ...", 1),
        ("store/queue.py", "class Implication: ...", 0),
        ("store/implicit.py", "class Queue: ...", 0),
    ],
)
def test_an_empty_name_is_found(tmp_path: Path, name: str, text: str, found: int) -> None:
    path = plant(tmp_path, name, text)
    assert len(rules.empty_names([path], tmp_path)) == found


def test_no_class_name_is_used_often() -> None:
    assert rules.class_names_used_often(rules.python_files(rules.SRC)) == []


@pytest.mark.parametrize(("modules", "found"), [(2, 0), (3, 1)])
def test_a_class_name_used_often_is_found(tmp_path: Path, modules: int, found: int) -> None:
    paths = [plant(tmp_path, f"{number}.py", "class Report: ...\n") for number in range(modules)]
    assert len(rules.class_names_used_often(paths)) == found


def test_core_can_be_imported_by_all() -> None:
    # protocol imports core.errors; an import in core/__init__.py would become one of protocol's.
    assert (rules.PACKAGE / "core" / "__init__.py").read_bytes() == b""
