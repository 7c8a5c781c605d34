"""The entry of the ``cometmq`` command: picks the room that serves the words after it.

Servers have a way of their own (argparse, nothing drawn), because a broker must answer within
600 ms of its start and typer with rich takes 60 to 90 ms to import. Every other command is typer's.
"""

from __future__ import annotations

import sys
from collections.abc import Sequence

SERVERS = frozenset({"start", "namesrv", "broker"})
#: Second words behind "broker" that ask one which runs already.
OF_A_BROKER = frozenset({"promote", "drain", "undrain"})


def main(arguments: Sequence[str] | None = None) -> int:
    """Run one command; gives the exit code: 0 done, 1 failed, 2 could not be done as asked."""
    words = list(sys.argv[1:] if arguments is None else arguments)
    asks = words[:1] == ["broker"] and OF_A_BROKER.intersection(words[1:2])
    if words and words[0] in SERVERS and not asks:
        from cometmq.cli.servers import main as serve

        return serve(words)
    from cometmq.cli.app import main as do

    return do(words)
