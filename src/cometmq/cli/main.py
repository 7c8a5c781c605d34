"""Entry point of the ``cometmq`` command: passes the arguments to a server or to another command.

Servers parse their arguments with argparse, because a broker must respond within 600 ms of its
start, and typer with rich takes 60 to 90 ms to import. All other commands use typer.
"""

from __future__ import annotations

import sys
from collections.abc import Sequence

SERVERS = frozenset({"start", "namesrv", "broker"})
#: Words after "broker" that send a request to a running broker instead of starting one.
OF_A_BROKER = frozenset({"promote", "drain", "undrain"})


def main(arguments: Sequence[str] | None = None) -> int:
    """Run one command and return its exit code: 0 done, 1 failed, 2 cannot be done as requested."""
    words = list(sys.argv[1:] if arguments is None else arguments)
    asks = words[:1] == ["broker"] and OF_A_BROKER.intersection(words[1:2])
    if words and words[0] in SERVERS and not asks:
        from cometmq.cli.servers import main as serve

        return serve(words)
    from cometmq.cli.app import main as do

    return do(words)
