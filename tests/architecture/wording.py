"""Rules about how docstrings and comments are written: plain words, functions with verbs."""

import ast
import io
import re
import tokenize
from collections.abc import Iterable, Iterator
from pathlib import Path

from tests.architecture.rules import Function, parse

#: First words that describe what a function is, where its docstring must say what it does.
NOT_VERBS = frozenset(
    ("a", "all", "an", "any", "each", "every", "how", "if", "it", "its", "of", "that", "the"),
) | frozenset(
    ("there", "these", "this", "what", "when", "where", "whether", "which", "who", "whose", "why")
)
#: Verbs whose plain form ends in `s`; other words with that ending are "Returns" or a plural.
ENDS_IN_S = frozenset(
    ("address", "compress", "decompress", "discuss", "express", "pass", "process")
)

#: Wording that a reader has to puzzle over.
BANNED = re.compile(
    r"\b(?:"
    r"whoever|whomever|anew|so many|no more than is|to be had|by and by|as it were"
    r"|one behind the other|comes? up again|nobody asks|somebody else's"
    r")\b",
    re.IGNORECASE,
)


def public_functions(tree: ast.AST) -> Iterator[Function]:
    """Yield the functions whose names do not begin with an underscore, properties left out."""
    for node in ast.walk(tree):
        if isinstance(node, Function) and not node.name.startswith("_"):
            decorators = {ast.unparse(decorator) for decorator in node.decorator_list}
            if not any(name.endswith(("property", ".setter")) for name in decorators):
                yield node


def functions_without_verb(files: Iterable[Path]) -> list[str]:
    """Return the public functions whose docstring does not begin with an imperative verb."""
    complaints = []
    for path in files:
        for function in public_functions(parse(path)):
            first = (ast.get_docstring(function) or "Do").split(maxsplit=1)[0]
            if not is_imperative(first.strip("`.,:;*").lower()):
                complaints.append(f"{path}:{function.lineno}: {function.name}: {first} ...")
    return complaints


def is_imperative(word: str) -> bool:
    """Return whether a docstring's first word can be an imperative verb."""
    plural = word.endswith("s") and word not in ENDS_IN_S
    return word.isalpha() and word not in NOT_VERBS and not plural


def prose(path: Path) -> Iterator[tuple[int, str]]:
    """Yield each docstring and comment of a file with its line."""
    for node in ast.walk(tree := parse(path)):
        if isinstance(node, ast.ClassDef | Function) and (text := ast.get_docstring(node)):
            yield node.lineno, text
    yield 1, ast.get_docstring(tree) or ""
    lines = io.StringIO(path.read_text(encoding="utf-8"))
    for token in tokenize.generate_tokens(lines.readline):
        if token.type == tokenize.COMMENT:
            yield token.start[0], token.string


def banned_wording(files: Iterable[Path]) -> list[str]:
    """Return the docstrings and comments that have wording of BANNED."""
    return [
        f"{path}:{line}: {match.group()}"
        for path in files
        for line, text in prose(path)
        if (match := BANNED.search(" ".join(text.split())))
    ]
