"""Checks of keyword arguments that a TypedDict declares, because Python accepts any name there."""

from __future__ import annotations

from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from collections.abc import Mapping


def refuse_unknown(what: str, given: Mapping[str, object], known: type) -> None:
    """Raise TypeError for a name in ``given`` that ``known``, a TypedDict, does not declare.

    ``what`` is the callable that the message names.
    """
    for name in given.keys() - known.__annotations__.keys():
        raise TypeError(f"{what} got an unexpected keyword argument {name!r}")
