"""Completion in bash, zsh and fish: a script for each shell, and the words that can follow.

The scripts call ``cometmq complete -- WORD...``, whose last word is the one at the cursor. So they
need not change when commands do.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from typing import TYPE_CHECKING, Final

if TYPE_CHECKING:
    import argparse

GENERAL: Final = ("--help", "--version", "--log-level")

SCRIPTS: Final = {
    "bash": """\
_cometmq() {
    local cur="${COMP_WORDS[COMP_CWORD]}"
    local IFS=$'\\n'
    COMPREPLY=($(compgen -W "$(cometmq complete -- "${COMP_WORDS[@]:1:COMP_CWORD}" 2>/dev/null)" \\
        -- "$cur"))
    [ ${#COMPREPLY[@]} -eq 0 ] && COMPREPLY=($(compgen -f -- "$cur"))
    return 0
}
complete -F _cometmq cometmq
""",
    "zsh": """\
#compdef cometmq
_cometmq() {
    local -a found
    found=("${(@f)$(cometmq complete -- "${(@)words[2,CURRENT]}" 2>/dev/null)}")
    if [[ -n "${found[1]}" ]]; then
        compadd -a found
    else
        _files
    fi
}
if [ "$funcstack[1]" = "_cometmq" ]; then
    _cometmq "$@"
else
    compdef _cometmq cometmq
fi
""",
    "fish": """\
function __cometmq_complete
    set -l words (commandline -opc) (commandline -ct)
    cometmq complete -- $words[2..-1] 2>/dev/null
end
complete -c cometmq -a '(__cometmq_complete)'
""",
}


def complete(words: Sequence[str]) -> list[str]:
    """Return the completions of the last of ``words``, which may be empty."""
    from cometmq.cli.nouns import ENTRIES

    said = list(words[1:] if words[:1] == ["--"] else words) or [""]
    before, at = said[:-1], said[-1]
    if not before:
        return _beginning(at, [*ENTRIES, *(GENERAL if at.startswith("-") else ())])
    if before[0] == "help":
        return _beginning(at, ENTRIES)
    if before[0] not in ENTRIES:
        return []
    return _beginning(at, _after(before))


def _after(before: list[str]) -> list[str]:
    """Return the words that can follow ``before``, which begins with a word of ENTRIES."""
    from cometmq.cli.nouns import ENTRIES, load

    first, rest = before[0], before[1:]
    entry = ENTRIES[first]
    found: list[str] = []
    if entry.is_server and (not rest or rest[0].startswith("-")):
        from cometmq.cli.servers import parser_of

        found += _of_parser(parser_of(first), rest)
    if not entry.module:
        return found
    noun = load(first)
    if not rest and "" not in noun.commands:
        return found + [each.words.split()[0] for each in noun.commands.values() if not each.hidden]
    command, count = noun.find(rest)
    if "" in noun.commands:
        command, count = noun.commands[""], 0
    if command is not None:
        return found + _of_parser(command.parser(f"cometmq {first}"), rest[count:])
    pairs = [each.words.split() for each in noun.commands.values() if " " in each.words]
    return found + [pair[1] for pair in pairs if pair[0] == rest[0] and len(rest) == 1]


def _of_parser(parser: argparse.ArgumentParser, rest: list[str]) -> list[str]:
    """Return the values of the option at the end of ``rest``, or else all options and arguments."""
    for action in parser._actions:
        if rest and rest[-1] in action.option_strings and action.nargs != 0:
            return _values(action)
    found = [name for action in parser._actions for name in action.option_strings]
    for action in parser._actions:
        if not action.option_strings:
            found += _values(action)
    return found


def _values(action: argparse.Action) -> list[str]:
    if action.choices is not None:
        return [str(each) for each in action.choices]
    shown = action.metavar if isinstance(action.metavar, str) else ""
    return shown.split("|") if "|" in shown else []


def _beginning(word: str, known: Iterable[str]) -> list[str]:
    found = {each for each in known if each.startswith(word)}
    if not word.startswith("-"):
        found = {each for each in found if not each.startswith("-")}
    return sorted(found)
