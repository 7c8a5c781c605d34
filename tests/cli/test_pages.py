"""The pages on the command line have the commands and fields that there are, and no others."""

import re
import shlex

import pytest

from cometmq.cli.nouns import ENTRIES, load
from scripts.cli_page import pages
from tests.architecture.rules import ROOT


def test_the_tables_are_current() -> None:
    for path, text in pages().items():
        assert path.read_text(encoding="utf-8") == text, "run .venv/bin/python -m scripts.cli_page"


def words_of(line: str) -> list[str]:
    """Return the words of the first command of a line, up to a pipe or a redirect."""
    reader = shlex.shlex(line, posix=True, punctuation_chars=True)
    reader.whitespace_split = True
    found: list[str] = []
    for word in reader:
        if set(word) <= set("|&<>;()"):
            break
        found.append(word)
    return found


def shown_commands() -> list[tuple[str, ...]]:
    """Return the commands of ours that the documentation runs."""
    found = set()
    for page in (ROOT / "README.md", *ROOT.glob("docs/**/*.md")):
        text = page.read_text(encoding="utf-8").replace("\\\n", " ")
        for block in re.findall(r"```(?:sh|bash|console)\n(.*?)```", text, re.DOTALL):
            for line in block.splitlines():
                words = line.strip().removeprefix("$ ").removeprefix(".venv/bin/")
                if words.startswith("cometmq ") and words.split()[1] in ENTRIES:
                    found.add(tuple(words_of(words)))
    # Its commands stand in tables.
    text = (ROOT / "docs" / "troubleshooting.md").read_text(encoding="utf-8")
    inline = [words_of(span) for span in re.findall(r"`(cometmq [a-z][^`]*)`", text)]
    assert len(inline) > 20
    return sorted(found | {tuple(words) for words in inline if words[1] in ENTRIES})


@pytest.mark.parametrize("line", shown_commands(), ids=" ".join)
def test_a_command_in_the_documentation_is_understood(line: tuple[str, ...]) -> None:
    _, word, *words = line
    entry = ENTRIES[word]
    if word == "spark" or (entry.is_server and (not entry.module or not words)):
        return
    if entry.is_server and words[0].startswith("-"):
        from cometmq.cli.servers import build_parser

        build_parser().parse_args([word, *words])
        return
    noun = load(word)
    command, count = (noun.commands[""], 0) if "" in noun.commands else noun.find(words)
    assert command is not None, line
    command.parser(f"cometmq {word}").parse_args(words[count:])
