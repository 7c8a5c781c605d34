"""A way to a server that loses a connection at its COMMIT, before or after the server has it."""

import socket
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from dataclasses import dataclass, field
from pathlib import Path
from threading import Thread
from typing import Literal

SIZE = 1 << 16
ENDING_S = 30


@dataclass
class Cutting:
    """Passes all on between ``path`` and ``server``; ``cut`` says where the next COMMIT is cut."""

    path: Path
    server: str
    cut: Literal["", "before", "after"] = ""
    cuts: int = 0
    threads: list[Thread] = field(default_factory=list)

    def accept(self, listener: socket.socket) -> None:
        """Serve connections until the listener is shut down."""
        while True:
            try:
                client, _ = listener.accept()
            except OSError:
                return
            server = socket.socket(socket.AF_UNIX)
            server.connect(self.server)
            self.start(self.serve, client, server)

    def start(self, target: Callable[..., None], *words: socket.socket) -> None:
        """Start a thread that the end waits for."""
        self.threads.append(Thread(target=target, args=words, daemon=True))
        self.threads[-1].start()

    def serve(self, client: socket.socket, server: socket.socket) -> None:
        """Pass on both ways until both have ended."""
        with client, server:
            answers = Thread(target=self.pass_answers, args=(server, client), daemon=True)
            answers.start()
            self.pass_commands(client, server)
            answers.join(ENDING_S)

    def pass_commands(self, client: socket.socket, server: socket.socket) -> None:
        """From the client; here connections are cut."""
        with suppress(OSError):
            while data := client.recv(SIZE):
                if self.cut and data.endswith(b"\x03COMMIT"):
                    self.cuts += 1
                    where, self.cut = self.cut, ""
                    if where == "after":
                        # Only the way to the server stays open: it commits, and no answer comes.
                        client.shutdown(socket.SHUT_WR)
                        server.sendall(data)
                    break
                server.sendall(data)
        with suppress(OSError):
            server.shutdown(socket.SHUT_WR)
        with suppress(OSError):
            client.shutdown(socket.SHUT_RDWR)

    def pass_answers(self, server: socket.socket, client: socket.socket) -> None:
        """From the server, to its end."""
        while data := server.recv(SIZE):
            with suppress(OSError):
                client.sendall(data)
        with suppress(OSError):
            client.shutdown(socket.SHUT_RDWR)


@contextmanager
def cutting(path: Path, server: str) -> Iterator[Cutting]:
    """A socket at ``path`` that leads to that of a server."""
    found = Cutting(path, server)
    with socket.socket(socket.AF_UNIX) as listener:
        listener.bind(str(path))
        listener.listen()
        found.start(found.accept, listener)
        try:
            yield found
        finally:
            listener.shutdown(socket.SHUT_RDWR)
            for thread in found.threads:
                thread.join(ENDING_S)
                assert not thread.is_alive()
