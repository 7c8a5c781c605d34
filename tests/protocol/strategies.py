"""Hypothesis strategies that follow from the registry: headers with any content, and their codes.

Text leans towards what trips parsers: empty, "null", numbers, escapes, control characters as
message properties carry them, and characters outside the basic plane.
"""

from typing import Any, get_args, get_origin

import msgspec
from hypothesis import strategies as st

from cometmq.protocol import headers
from cometmq.protocol.fields import Flag
from cometmq.protocol.headers import Header
from cometmq.protocol.registry import REGISTRY

TRICKY = (
    "null",
    "true",
    "0",
    "+5",
    '"',
    "\\",
    "KEYS\x01AD-02\x02TAGS\x01a\x02",
    "\U0001f40e",
    "\0",
)

#: Every header struct, requests and responses alike.
HEADER_TYPES = sorted(
    {spec.header for spec in REGISTRY.values()} | {spec.response for spec in REGISTRY.values()},
    key=lambda cls: cls.__name__,
)
#: One code for each request header type, as connections read headers by code.
REQUEST_CODES = {int(code): spec.header for code, spec in sorted(REGISTRY.items())}

flags = st.sampled_from(["true", "false", "TRUE", "1", "0"])


def texts(min_size: int = 0) -> st.SearchStrategy[str]:
    """Any text that UTF-8 can carry."""
    return st.one_of(st.sampled_from(TRICKY), st.text(min_size=min_size, max_size=12))


def field_values(hint: Any, *, min_size: int = 0) -> st.SearchStrategy[Any]:
    """Values of one field, by its declared type."""
    if hint == Flag:
        return st.none() | flags
    if get_origin(hint) is not None and type(None) in get_args(hint):
        (inner,) = (part for part in get_args(hint) if part is not type(None))
        return st.none() | field_values(inner, min_size=min_size)
    if hint is str:
        return texts(min_size)
    bound = {"int32": 2**31, "int64": 2**63}[hint.__metadata__[0].title]
    return st.integers(-bound, bound - 1)


def header_values(cls: type[Header], *, min_size: int = 0) -> st.SearchStrategy[Header]:
    """Instances of one header struct; text has at least ``min_size`` characters."""
    fields = {
        info.name: flags
        if info.type == Flag and info.required
        else field_values(info.type, min_size=min_size)
        for info in msgspec.structs.fields(cls)
    }
    return st.builds(cls, **fields)


def requests(*, min_size: int = 0) -> st.SearchStrategy[tuple[int, Header]]:
    """A code of the registry with a header for it."""
    return st.sampled_from(sorted(REQUEST_CODES)).flatmap(
        lambda code: st.tuples(st.just(code), header_values(REQUEST_CODES[code], min_size=min_size))
    )


def all_header_structs() -> list[type[Header]]:
    """What headers.py declares, registered or not."""
    found = [
        value
        for value in vars(headers).values()
        if isinstance(value, type) and issubclass(value, Header) and value is not Header
    ]
    return sorted(found, key=lambda cls: cls.__name__)
