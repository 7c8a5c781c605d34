"""Command line of a Spark job, made from the dataclass of its options.

A field becomes an option with its name, in the singular if it accepts several values; its Word (see
cometmq.spark.jobs.words) overrides that. Typer reads the result like any function.
"""

from __future__ import annotations

import types
from collections.abc import Callable, Mapping
from dataclasses import MISSING, Field, fields
from inspect import Parameter, Signature
from typing import TYPE_CHECKING, Annotated, Any, Final, Union, get_args, get_origin, get_type_hints

import typer

from cometmq.cli.servers import parse_settings

if TYPE_CHECKING:
    from cometmq.spark.jobs.words import Word

#: Options that have the same names in every command.
_NAMED: Final[Mapping[str, tuple[str, ...]]] = {"nameservers": ("--namesrv", "-n")}
_NAMESRV: Final = "NAMESRV_ADDR"


def command(options: type[Any], extra: Callable[..., None]) -> Callable[..., None]:
    """Return a function for typer with the fields of ``options`` and the keywords of ``extra``.

    It calls ``extra(options(...), **keywords)``.
    """
    own = {each.name: _parameter(each, hint) for each, hint in _hints(options)}
    also = Signature.from_callable(extra, eval_str=True).parameters
    others = [each for each in also.values() if each.kind is Parameter.KEYWORD_ONLY]

    def call(**values: Any) -> None:
        given = {name: _value(values.pop(name), options, name) for name in own}
        extra(options(**given), **values)

    call.__signature__ = Signature([*own.values(), *others])  # type: ignore[attr-defined]
    call.__annotations__ = {}
    return call


def _hints(options: type[Any]) -> list[tuple[Field[Any], Any]]:
    hints = get_type_hints(options, include_extras=True)
    return [(each, hints[each.name]) for each in fields(options) if each.init]


def _parameter(field: Field[Any], hint: Any) -> Parameter:
    word, kind = _split(hint)
    default = field.default if field.default_factory is MISSING else field.default_factory()
    needed = default is MISSING
    several = get_origin(kind) in (tuple, dict)
    kind = _plain(kind)
    help_text = word.help if word else None
    read = word.read if word else None
    if read is not None:
        read = _refusing(read)
    if word and word.positional:
        told = typer.Argument(help=help_text, parser=read, show_default=False)
    else:
        name = _name(field.name, word, several=several, is_on=default is True)
        names = _NAMED.get(field.name, (name,))
        shown = not (needed or several or default in (None, "", False))
        env = _NAMESRV if field.name == "nameservers" and needed else None
        told = typer.Option(*names, help=help_text, parser=read, show_default=shown, envvar=env)
    value = Parameter.empty if needed else (None if several else default)
    if value is None:
        kind = kind | None
    annotation: Any = Annotated[kind, told]
    return Parameter(field.name, Parameter.KEYWORD_ONLY, default=value, annotation=annotation)


def _split(hint: Any) -> tuple[Word | None, Any]:
    """Return the Word of an annotation, and the type without it and without None."""
    word: Word | None = None
    if get_origin(hint) is Annotated:
        hint, *notes = get_args(hint)
        word = next((note for note in notes if hasattr(note, "positional")), None)
    if get_origin(hint) in (Union, types.UnionType):
        hint = next(part for part in get_args(hint) if part is not type(None))
    return word, hint


def _plain(kind: Any) -> Any:
    """Return the type as typer knows it: several values are a list."""
    if get_origin(kind) is tuple:
        return list[get_args(kind)[0]]  # type: ignore[misc]
    return list[str] if get_origin(kind) is dict else kind


def _name(field: str, word: Word | None, *, several: bool, is_on: bool) -> str:
    name = (word.name if word else "") or (field.removesuffix("s") if several else field)
    name = name.replace("_", "-")
    return f"--{name}/--no-{name}" if is_on else f"--{name}"


def _refusing(read: Callable[[str], Any]) -> Callable[[str], Any]:
    """Wrap a reader so that its ValueError becomes typer's error."""

    def parse(text: Any) -> Any:
        if not isinstance(text, str):
            return text
        try:
            return read(text)
        except ValueError as error:
            raise typer.BadParameter(str(error)) from None

    return parse


def _value(value: Any, options: type[Any], name: str) -> Any:
    """Convert a value read by typer to the type of the field."""
    kind = _split(get_type_hints(options, include_extras=True)[name])[1]
    if get_origin(kind) is tuple:
        return tuple(value or ())
    if get_origin(kind) is dict:
        return parse_settings(value or ())
    return value
