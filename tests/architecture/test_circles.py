"""No modules import each other in a circle."""

from pathlib import Path

import pytest

from tests.architecture.circles import circles, imports
from tests.architecture.rules import SRC


def test_no_modules_import_each_other() -> None:
    assert circles(imports(SRC)) == []


@pytest.mark.parametrize(
    ("last", "found"),
    [
        ("", []),
        ("import p.a\n", [["p.a", "p.b", "p.q.c"]]),
        ("from p import a\n", [["p.a", "p.b", "p.q.c"]]),
        ("if TYPE_CHECKING:\n    from p.a import x\n", [["p.a", "p.b", "p.q.c"]]),
        ("def late():\n    from p.b import x\n", [["p.b", "p.q.c"]]),
    ],
)
def test_a_planted_circle_is_found(tmp_path: Path, last: str, found: list[list[str]]) -> None:
    texts = {
        "p/__init__.py": "",
        "p/a.py": "from p.b import x\n",
        "p/b.py": "from p.q import c\nimport os\n",
        "p/q/__init__.py": "",
        "p/q/c.py": last,
    }
    for name, text in texts.items():
        path = tmp_path / name
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(text, encoding="utf-8")
    assert circles(imports(tmp_path)) == found
