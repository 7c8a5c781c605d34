"""An HTTP server on loopback that knows the name servers."""

from __future__ import annotations

import threading
from collections.abc import Iterator
from contextlib import contextmanager
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer


class AddressService:
    """The server: what it answers, and the paths that it was asked for."""

    def __init__(self) -> None:
        self.status = 200
        self.text = ""
        self.asked: list[str] = []
        service = self

        class Handler(BaseHTTPRequestHandler):
            protocol_version = "HTTP/1.1"

            def do_GET(self) -> None:
                service.asked.append(self.path)
                body = service.text.encode()
                self.send_response(service.status)
                self.send_header("Content-Length", str(len(body)))
                self.end_headers()
                self.wfile.write(body)

            def log_message(self, *_: object) -> None:
                pass

        self.server = ThreadingHTTPServer(("127.0.0.1", 0), Handler)
        self.server.daemon_threads = True
        self.domain = f"127.0.0.1:{self.server.server_port}"
        self.url = f"http://{self.domain}/rocketmq/nsaddr"

    @property
    def settings(self) -> dict[str, str]:
        """Settings of a broker that asks this server."""
        return {
            "fetchNamesrvAddrByAddressServer": "true",
            "rmqAddressServerDomain": self.domain,
        }


@contextmanager
def address_service() -> Iterator[AddressService]:
    """Run the server in a thread until the block ends."""
    service = AddressService()
    thread = threading.Thread(target=service.server.serve_forever)
    thread.start()
    try:
        yield service
    finally:
        service.server.shutdown()
        service.server.server_close()
        thread.join()
