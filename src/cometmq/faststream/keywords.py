"""Checks of keywords that TypedDicts declare: Python itself accepts all of them."""

from __future__ import annotations

from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from collections.abc import Mapping


def refuse_unknown(what: str, given: Mapping[str, object], known: type) -> None:
    """Raise TypeError for a keyword that ``known``, a TypedDict, does not have."""
    for name in given.keys() - known.__annotations__.keys():
        raise TypeError(f"{what} got an unexpected keyword argument {name!r}")
