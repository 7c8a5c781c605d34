"""No pattern takes longer than linear time over text that others send."""

import re
from pathlib import Path

import pytest

from tests.architecture import patterns, rules

#: Patterns with a complaint that may stay, by file and the begin of their text, each with a reason.
ALLOWED = {
    ("filter/sqltext.py", "(?P<blank>[ "): "what has no end is refused where it begins",
    ("filter/sqltext.py", "--[^\\n\\r]*+["): "searched for once a text",
    ("protocol/fastjson.py", '"(?:[^"\\\\]++'): "a string without an end is refused at once",
    ("speedups/plain/headers.py", '"((?:[^"\\\\\\x'): "what has no end is refused where it begins",
    ("spark/read/topics.py", None): "the reader's own expression, over topic names of 127 letters",
}


def found(path: Path) -> list[tuple[patterns.Pattern, list[str]]]:
    """Patterns of a file with their complaints; one that cannot be read has `unknown`."""
    pairs = []
    for each in patterns.patterns(path):
        shapes = ["unknown"]
        if each.text is not None:
            shapes = patterns.complaints(each.text, each.flags, searches=each.searches)
        if shapes:
            pairs.append((each, shapes))
    return pairs


def key(pattern: patterns.Pattern) -> tuple[str, str | None]:
    """How `ALLOWED` names a pattern."""
    text = pattern.text.decode("latin-1") if isinstance(pattern.text, bytes) else pattern.text
    return (pattern.path.relative_to(rules.PACKAGE).as_posix(), text and text[:12])


def test_no_pattern_is_slower_than_linear() -> None:
    complaints = [
        (f"{each.path}:{each.line}", shapes, each.text)
        for path in rules.python_files(rules.PACKAGE)
        for each, shapes in found(path)
        if key(each) not in ALLOWED
    ]
    assert complaints == []


def test_what_is_allowed_is_there() -> None:
    files = rules.python_files(rules.PACKAGE)
    assert {key(each) for path in files for each, _ in found(path)} >= set(ALLOWED)


def test_the_patterns_are_found() -> None:
    every = [each for path in rules.python_files(rules.PACKAGE) for each in patterns.patterns(path)]
    assert len(every) > 20


@pytest.mark.parametrize(
    ("text", "shape"),
    [
        (r"(a+)*", "nested"),
        (r"(?:a|b+)+c", "nested"),
        (r"(?:[^,]*,?)*$", "nested"),
        (r"((?:ab?)+){2,}", "nested"),
        (r"(a*){1,40}x", "nested"),
        (r"a*a*b", "adjacent"),
        (r"\d+\.?\d*x", "adjacent"),
        (r"\s*(?:x|)\s*y", "adjacent"),
        (r".*x.*y", "adjacent"),
        (r"[a-c]+?b*z", "adjacent"),
        (r"(?i:A+)a+", "adjacent"),
        (r"a*a*+b", "adjacent"),
        (r"(?:a*a*b)?", "adjacent"),
        (r"(?:x*x*b|c){3}", "adjacent"),
        (r"a{0,5000}a+b", "adjacent"),
        (r"[^a]+[^b]+c", "adjacent"),
        (r"a+b", "restarted"),
        (r"a*+b", "restarted"),
        (r'"(?:[^"\\]|\\.)*"', "restarted"),
        (r"--[^\n]*\n", "restarted"),
        (r"/\*.*?\*/", "restarted"),
        (r"(?m)^\s*x", "restarted"),
        (r"0|\d+e", "restarted"),
        (r"\s+$", "restarted"),
    ],
)
def test_a_slow_pattern_is_found(text: str, shape: str) -> None:
    assert shape in patterns.complaints(text, re.DOTALL)


@pytest.mark.parametrize(
    "text",
    [
        r"a+",
        r"(?:[a-z]++,)*+x",
        r"x[^x]*+x",
        r"\}\s*,\s*(?=\")",
        r"[0-9]{1,40}",
        r"a*+b*+a*+",
        r"<(?>[^<>]*)>",
        r"(\d+)-(.+)",
        r"^\s*x",
    ],
)
def test_a_quick_pattern_is_not(text: str) -> None:
    assert patterns.complaints(text, searches=not text.startswith(("(", "a*+"))) == []


@pytest.mark.parametrize(
    ("source", "seen"),
    [
        ('re.search(r"a+b", text)', ["restarted"]),
        ('re.match(r"a+b", text)', []),
        ('P = re.compile(r"a+b")\nP.match(text)', []),
        ('P = re.compile(r"a+b")\nP.match(text, 7)', ["restarted"]),
        ('P: Final = re.compile(rb"a+b")\nP.fullmatch(text)\nP.search(text)', ["restarted"]),
        ('A = "a*"\nre.match(A, text)', []),
        ('A = "a*"\nre.match(A + "a*b", text)', ["adjacent"]),
        ('re.match(f"a*{b}a*b", text)', ["adjacent"]),
        ("re.compile(text)", ["unknown"]),
        ('re.search("A+b", text, re.IGNORECASE)', ["restarted"]),
        ('find = re.compile(b"a+b").findall', ["restarted"]),
    ],
)
def test_a_planted_pattern_is_found(tmp_path: Path, source: str, seen: list[str]) -> None:
    path = tmp_path / "planted.py"
    path.write_text(f"import re\n{source}\n", encoding="utf-8")
    assert [shape for _, shapes in found(path) for shape in shapes] == seen
