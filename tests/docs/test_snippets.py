"""All code in the documentation is run by a test, or listed with the reason why it is not."""

import ast
import importlib
import importlib.util
import re
import textwrap
from pathlib import Path

import pytest

import cometmq
from tests.architecture.rules import ROOT

LIST = Path(__file__).parent / "snippets.txt"
BLOCK = re.compile(
    r"^ *```(python|sh|bash|console|sql|yaml)\n(.*?)^ *```", re.MULTILINE | re.DOTALL
)
PAGES = {
    path.relative_to(ROOT).as_posix(): path.read_text(encoding="utf-8")
    for path in (ROOT / "README.md", *sorted((ROOT / "docs").rglob("*.md")))
}


def listed() -> dict[str, str]:
    """Return what runs the code of each page in the list."""
    lines = LIST.read_text(encoding="utf-8").splitlines()
    rows = [line.split(maxsplit=1) for line in lines if line and not line.startswith("#")]
    return {page: runs for page, runs in rows}


def snippets() -> list[tuple[str, str]]:
    """Return each Python block of each page that does not include a file."""
    return [
        (name, textwrap.dedent(block))
        for name, text in PAGES.items()
        for language, block in BLOCK.findall(text)
        if language == "python" and "--8<--" not in block
    ]


def faults(block: str) -> list[str]:
    """Return what does not exist in a Python block: its imports of CometMQ and names of it."""
    tree = compile(block, "page", "exec", flags=ast.PyCF_ALLOW_TOP_LEVEL_AWAIT | ast.PyCF_ONLY_AST)
    found = []
    for node in ast.walk(tree):
        if isinstance(node, ast.ImportFrom) and (node.module or "").startswith("cometmq"):
            module = importlib.import_module(node.module or "")
            for alias in node.names:
                if not hasattr(module, alias.name):
                    try:
                        importlib.import_module(f"{node.module}.{alias.name}")
                    except ImportError:
                        found.append(f"{node.module}.{alias.name}")
        elif isinstance(node, ast.Attribute) and ast.unparse(node.value) == "cometmq":
            try:
                getattr(cometmq, node.attr)
            except AttributeError:
                if importlib.util.find_spec(f"cometmq.{node.attr}") is None:
                    found.append(f"cometmq.{node.attr}")
    return found


def kept_readers(block: str) -> list[str]:
    """Return where a Python block gives options to a reader or writer of Spark in a variable."""
    tree = compile(block, "page", "exec", flags=ast.PyCF_ALLOW_TOP_LEVEL_AWAIT | ast.PyCF_ONLY_AST)
    found = []
    for node in ast.walk(tree):
        if isinstance(node, ast.Attribute) and node.attr in ("option", "options"):
            chain: ast.expr = node.value
            while isinstance(chain, ast.Call) and isinstance(chain.func, ast.Attribute):
                chain = chain.func.value
            if isinstance(chain, ast.Name):
                found.append(ast.unparse(node))
    return found


def test_every_page_with_code_is_listed() -> None:
    with_code = {name for name, text in PAGES.items() if BLOCK.search(text)}
    assert with_code - set(listed()) == set(), f"say in {LIST.name} which test runs their code"
    assert set(listed()) - with_code == set()


def test_the_list_names_tests_and_reasons() -> None:
    for page, runs in listed().items():
        if runs.startswith("- "):
            assert len(runs.split()) > 3, page
        else:
            assert (ROOT / runs).is_file(), page
        for path in re.findall(r"tests/[\w/]+(?:\.py)?", runs):
            assert (ROOT / path).exists(), f"{page}: {path}"


@pytest.mark.parametrize(("page", "block"), snippets())
def test_python_names_what_there_is(page: str, block: str) -> None:
    assert faults(block) == [], page


@pytest.mark.parametrize(
    ("block", "count"),
    [
        ("import cometmq\nawait cometmq.Client().close()", 0),
        ("from cometmq.admin import bundle", 0),
        ("from cometmq import Gone", 1),
        ("cometmq.Gone()", 1),
    ],
)
def test_a_missing_name_is_found(block: str, count: int) -> None:
    assert len(faults(block)) == count


@pytest.mark.parametrize(("page", "block"), snippets())
def test_no_option_of_spark_stays_for_the_next_load(page: str, block: str) -> None:
    """``option`` changes the reader itself, so each ``load()`` needs a reader of its own."""
    assert kept_readers(block) == [], page


def test_a_kept_reader_is_found() -> None:
    kept = "read = spark.read.format('rocketmq')\nread.schema(s).option('topic', 't').load()"
    assert kept_readers(kept) == ["read.schema(s).option"]
    assert kept_readers("spark.read.format('rocketmq').option('topic', 't').load()") == []
    assert kept_readers("orders.writeStream.options(topic='t').start()") == []
