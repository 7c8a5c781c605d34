"""An error that an object keeps is never raised itself: it would gather the frames of all who raise
it, and their requests with these (core/errors.py, `fresh_copy`)."""

import ast
from pathlib import Path

from tests.architecture import rules

#: Errors that are raised once, by what ends with them.
ALLOWED = {
    ("broker/supervisor.py", "self.failure"),
    ("protocol/connection.py", "self.broken"),
}


def kept_errors(text: str) -> list[str]:
    """What of an object a module raises as it is."""
    return [
        ast.unparse(node.exc)
        for node in ast.walk(ast.parse(text))
        if isinstance(node, ast.Raise)
        and isinstance(node.exc, ast.Attribute)
        and not node.exc.attr[0].isupper()  # a class, of which each raise makes its own
    ]


def test_no_kept_error_is_raised() -> None:
    found = {
        (path.relative_to(rules.PACKAGE).as_posix(), error)
        for path in Path(rules.PACKAGE).rglob("*.py")
        for error in kept_errors(path.read_text(encoding="utf-8"))
    }
    assert found == ALLOWED


def test_a_planted_one_is_found() -> None:
    planted = (
        "def f(self):\n    if self.a.b:\n        raise self.a.b\n    raise fresh_copy(self.a.b)\n"
    )
    assert kept_errors(planted) == ["self.a.b"]
