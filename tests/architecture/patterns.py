"""Regular expressions that can take longer than linear time, found in their parsed trees.

Three shapes are complained of:

* `nested`: a repeat without a bound inside a repeat, `(a+)*`.
* `adjacent`: two repeats without a bound that can take the same text in more than one way, `a*a*`,
  `a+b?a+` or `.*x.*`.
* `restarted`: a repeat that a search, or a match in a loop, begins again inside its own run each
  time that what follows it is missing, `a+b`, `"(\\\\.|[^"])*"`.

The first two are fine when the first repeat gives nothing back (`a*+`, `(?>a*)`); the third is not,
for it does not come from giving back.
"""

import ast
import re
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from re import _constants as sre  # type: ignore[attr-defined]
from re import _parser as parser  # type: ignore[attr-defined]
from typing import Any

#: A repeat of so many is one without a bound.
MANY = 1_000
#: Ways through a pattern that are looked at.
WAYS_MAX = 4_000
#: Characters above 255 are told apart by kind: these stand for digits, spaces, letters, all others.
DIGIT, SPACE, LETTER, OTHER = range(256, 260)
ABOVE = frozenset((DIGIT, SPACE, LETTER, OTHER))
#: All characters that are told apart.
EVERY = frozenset(range(256)) | ABOVE
#: Stands in a pattern for text that is only known when it runs.
UNKNOWN = "(?s:.)"

_ANCHORED = frozenset(("match", "fullmatch"))
_FUNCTIONS = frozenset(
    ("compile", "match", "fullmatch", "search", "sub", "subn", "split", "findall", "finditer")
)
_CATEGORIES = {
    sre.CATEGORY_DIGIT: frozenset(map(ord, "0123456789")),
    sre.CATEGORY_SPACE: frozenset(map(ord, " \t\n\r\f\v\x1c\x1d\x1e\x1f\x85\xa0")),
    sre.CATEGORY_WORD: frozenset(c for c in range(256) if chr(c).isalnum() or c == ord("_")),
}
_ABOVE = {
    sre.CATEGORY_DIGIT: frozenset((DIGIT,)),
    sre.CATEGORY_SPACE: frozenset((SPACE,)),
    sre.CATEGORY_WORD: frozenset((DIGIT, LETTER)),
}
_NEGATED = {
    sre.CATEGORY_NOT_DIGIT: sre.CATEGORY_DIGIT,
    sre.CATEGORY_NOT_SPACE: sre.CATEGORY_SPACE,
    sre.CATEGORY_NOT_WORD: sre.CATEGORY_WORD,
}
_REPEATS = (sre.MAX_REPEAT, sre.MIN_REPEAT, sre.POSSESSIVE_REPEAT)


@dataclass(frozen=True, slots=True)
class Pattern:
    """One pattern of a source file. `text` is None when it cannot be known from the source."""

    path: Path
    line: int
    text: str | bytes | None
    flags: int
    #: Whether it is tried at more than one place of a text.
    searches: bool


@dataclass(frozen=True, slots=True)
class Item:
    """A step of a way through a pattern: the characters it takes.

    A step of no width (`$`, a look-ahead) takes none, but may fail.
    """

    characters: frozenset[int]
    unbounded: bool = False
    required: bool = True
    gives_back: bool = True
    no_width: bool = False


def complaints(text: str | bytes, flags: int = 0, *, searches: bool = True) -> list[str]:
    """The shapes found in a pattern, each once, in order."""
    found: list[str] = []
    tree = parser.parse(text, flags)
    flags = tree.state.flags
    found += ["nested"] if _nested(tree) else []
    for way in _all_ways(tree, flags):
        found += ["adjacent"] if _adjacent(way) else []
    if searches:
        for way in _ways(tree, flags):
            found += ["restarted"] if _restarted(way) else []
    return list(dict.fromkeys(found))


def _nested(tree: Iterable[Any], inside: bool = False) -> bool:
    """Whether a repeat of any number is in a repeat of several that gives back."""
    for operation, argument in tree:
        repeats = operation in _REPEATS
        if repeats and inside and argument[1] >= MANY:
            return True
        several = repeats and argument[1] > 1 and operation is not sre.POSSESSIVE_REPEAT
        kept = inside and operation not in (sre.POSSESSIVE_REPEAT, sre.ATOMIC_GROUP)
        if any(_nested(part, kept or several) for part in _parts(operation, argument)):
            return True
    return False


def _parts(operation: Any, argument: Any) -> list[Any]:
    """The trees directly inside an operation."""
    if operation in _REPEATS:
        return [argument[2]]
    if operation is sre.BRANCH:
        return list(argument[1])
    if operation is sre.SUBPATTERN:
        return [argument[3]]
    if operation is sre.ATOMIC_GROUP:
        return [argument]
    if operation in (sre.ASSERT, sre.ASSERT_NOT):
        return [argument[1]]
    if operation is sre.GROUPREF_EXISTS:
        return [part for part in argument[1:] if part is not None]
    return []


def _all_ways(tree: Any, flags: int) -> Iterator[list[Item]]:
    """The ways through a tree, and through each part of it by itself."""
    yield from _ways(tree, flags)
    for operation, argument in tree:
        for part in _parts(operation, argument):
            yield from _all_ways(part, flags)


def _ways(tree: Any, flags: int) -> list[list[Item]]:
    """Each way to go through a tree, as steps. Raises ValueError when there are too many."""
    ways: list[list[Item]] = [[]]
    for operation, argument in tree:
        steps = _steps(operation, argument, flags)
        ways = [way + step for way in ways for step in steps]
        if len(ways) > WAYS_MAX:
            raise ValueError(f"more than {WAYS_MAX} ways")
    return ways


def _steps(operation: Any, argument: Any, flags: int) -> list[list[Item]]:
    """The ways through one operation."""
    if operation in _REPEATS:
        return _repeat_steps(operation, argument, flags)
    if operation is sre.BRANCH:
        return [way for part in argument[1] for way in _ways(part, flags)]
    if operation is sre.SUBPATTERN:
        return _ways(argument[3], (flags | argument[1]) & ~argument[2])
    if operation is sre.ATOMIC_GROUP:
        return [[_kept(item) for item in way] for way in _ways(argument, flags)]
    if operation is sre.AT:
        lines = argument is sre.AT_BEGINNING and flags & re.MULTILINE
        begins = argument in (sre.AT_BEGINNING, sre.AT_BEGINNING_STRING)
        characters = frozenset((10,)) if lines else frozenset() if begins else EVERY
        return [[Item(characters, no_width=True)]]
    if operation in (sre.ASSERT, sre.ASSERT_NOT):
        return [[Item(EVERY, no_width=True)]]
    return [[Item(_characters(operation, argument, flags))]]


def _repeat_steps(operation: Any, argument: Any, flags: int) -> list[list[Item]]:
    least, most, body = argument
    if most < MANY:
        once = _ways(body, flags)
        if operation is sre.POSSESSIVE_REPEAT:
            once = [[_kept(item) for item in way] for way in once]
        return once if least else [[], *once]
    gives_back = operation is not sre.POSSESSIVE_REPEAT
    characters = frozenset[int]().union(
        *(item.characters for way in _ways(body, flags) for item in way if not item.no_width)
    )
    return [[Item(characters, unbounded=True, required=least > 0, gives_back=gives_back)]]


def _kept(item: Item) -> Item:
    return Item(item.characters, item.unbounded, item.required, False, item.no_width)


def _characters(operation: Any, argument: Any, flags: int) -> frozenset[int]:
    """What one character of a text may be."""
    if operation is sre.LITERAL:
        return _with_case(frozenset((_code(argument),)), flags)
    if operation is sre.NOT_LITERAL:
        return (EVERY - {argument}) | ABOVE
    if operation is sre.ANY:
        return EVERY if flags & re.DOTALL else EVERY - {10}
    if operation is sre.IN:
        return _class_characters(argument, flags)
    return EVERY  # a reference to a group and whatever else there may be


def _class_characters(members: Iterable[Any], flags: int) -> frozenset[int]:
    found: set[int] = set()
    negated = False
    for operation, argument in members:
        if operation is sre.NEGATE:
            negated = True
        elif operation is sre.RANGE:
            low, high = argument
            found |= set(range(low, min(high, 255) + 1))
            found |= ABOVE if high > 255 else set()
        elif operation is sre.CATEGORY:
            found |= _category(argument, flags)
        else:
            found.add(_code(argument))
    taken = _with_case(frozenset(found), flags)
    return (EVERY - taken) | ABOVE if negated else taken


def _code(character: int) -> int:
    """The code that stands for a character."""
    if character < 256:
        return character
    text = chr(character)
    kinds = ((str.isdigit, DIGIT), (str.isspace, SPACE), (str.isalnum, LETTER))
    return next((code for is_one, code in kinds if is_one(text)), OTHER)


def _category(category: Any, flags: int) -> frozenset[int]:
    plain = _CATEGORIES.get(category)
    if plain is not None:
        return plain if flags & re.ASCII else plain | _ABOVE[category]
    negated = _NEGATED[category]
    taken = _CATEGORIES[negated] if flags & re.ASCII else _CATEGORIES[negated] | _ABOVE[negated]
    return EVERY - taken


def _with_case(characters: frozenset[int], flags: int) -> frozenset[int]:
    if not flags & re.IGNORECASE:
        return characters
    plain = [chr(code) for code in characters if code < 256]
    return characters | {_code(ord(c)) for each in plain for c in each.upper() + each.lower()}


def _adjacent(way: Sequence[Item]) -> bool:
    """Whether a repeat that gives back can share its text with a later one."""
    for place, first in enumerate(way):
        if not (first.unbounded and first.gives_back):
            continue
        for distance, later in enumerate(way[place + 1 :]):
            between = way[place + 1 : place + 1 + distance]
            shares = later.unbounded and later.characters & first.characters
            if shares and not later.no_width and _passable(between, first, later):
                return True
    return False


def _passable(between: Sequence[Item], first: Item, later: Item) -> bool:
    """Whether both repeats can also take what has to stand between them."""
    return all(
        item.no_width
        or not item.required
        or (item.characters & first.characters and item.characters & later.characters)
        for item in between
    )


def _restarted(way: Sequence[Item]) -> bool:
    """Whether a search begins the first repeat again and again inside one run of it."""
    for place, item in enumerate(way):
        if item.unbounded:
            before, after = way[:place], way[place + 1 :]
            return any(each.required for each in after) and all(
                each.characters & item.characters for each in before
            )
    return False


# The patterns of source files.


def patterns(path: Path) -> list[Pattern]:
    """Every pattern that a file gives to `re`."""
    tree = ast.parse(path.read_text(encoding="utf-8"), filename=str(path))
    constants = _constants(tree)
    found = []
    for node in ast.walk(tree):
        name = _called(node)
        if name is not None and isinstance(node, ast.Call) and node.args:
            text = _text(node.args[0], constants)
            flags = _flags(node)
            searches = _searches(tree, node) if name == "compile" else name not in _ANCHORED
            found.append(Pattern(path, node.lineno, text, flags, searches))
    return found


def _called(node: ast.AST) -> str | None:
    """The function of `re` that a node calls, if any."""
    if (
        isinstance(node, ast.Call)
        and isinstance(node.func, ast.Attribute)
        and isinstance(node.func.value, ast.Name)
        and node.func.value.id == "re"
        and node.func.attr in _FUNCTIONS
    ):
        return node.func.attr
    return None


def _constants(tree: ast.Module) -> dict[str, str | bytes]:
    """Texts with a name at the top of a module."""
    found = {}
    for node in tree.body:
        if isinstance(node, ast.Assign | ast.AnnAssign) and isinstance(node.value, ast.Constant):
            target = node.targets[0] if isinstance(node, ast.Assign) else node.target
            if isinstance(target, ast.Name) and isinstance(node.value.value, str | bytes):
                found[target.id] = node.value.value
    return found


def _text(node: ast.expr, constants: dict[str, str | bytes]) -> str | bytes | None:
    """The pattern that an expression gives; parts known only at run time are `UNKNOWN`."""
    if isinstance(node, ast.Constant) and isinstance(node.value, str | bytes):
        return node.value
    if isinstance(node, ast.Name):
        return constants.get(node.id)
    if isinstance(node, ast.JoinedStr):
        parts = [_text(part, constants) for part in node.values]
        return "".join(part if isinstance(part, str) else UNKNOWN for part in parts)
    if isinstance(node, ast.BinOp) and isinstance(node.op, ast.Add):
        left, right = _text(node.left, constants), _text(node.right, constants)
        if isinstance(left, bytes) or isinstance(right, bytes):
            unknown = UNKNOWN.encode()
            return (left if isinstance(left, bytes) else unknown) + (
                right if isinstance(right, bytes) else unknown
            )
        if isinstance(left, str) or isinstance(right, str):
            return (left or UNKNOWN) + (right or UNKNOWN)
    return None


def _flags(call: ast.Call) -> int:
    """The flags named in a call."""
    words = [*call.args[1:], *(word.value for word in call.keywords if word.arg == "flags")]
    named = [
        node.attr for word in words for node in ast.walk(word) if isinstance(node, ast.Attribute)
    ]
    flags = 0
    for name in named:
        flag = getattr(re, name, 0)
        flags |= int(flag) if isinstance(flag, re.RegexFlag) else 0
    return flags


def _searches(tree: ast.Module, call: ast.Call) -> bool:
    """Whether a compiled pattern is used otherwise than by one match at the begin of a text."""
    uses: list[tuple[str, bool]] = []
    name = _name_of(tree, call)
    for node in ast.walk(tree):
        if not isinstance(node, ast.Attribute):
            continue
        ours = node.value is call or (isinstance(node.value, ast.Name) and node.value.id == name)
        if ours:
            uses.append((node.attr, _given_a_place(tree, node)))
    return not uses or any(attribute not in _ANCHORED or placed for attribute, placed in uses)


def _name_of(tree: ast.Module, call: ast.Call) -> str | None:
    for node in ast.walk(tree):
        if isinstance(node, ast.Assign | ast.AnnAssign) and node.value is call:
            target = node.targets[0] if isinstance(node, ast.Assign) else node.target
            if isinstance(target, ast.Name):
                return target.id
    return None


def _given_a_place(tree: ast.Module, attribute: ast.Attribute) -> bool:
    """Whether a method is called with a place to begin at, so perhaps in a loop.

    A method that is only taken may be called so elsewhere, but a bare `NAME.fullmatch` is common.
    """
    return any(
        isinstance(node, ast.Call) and node.func is attribute and len(node.args) > 1
        for node in ast.walk(tree)
    )
