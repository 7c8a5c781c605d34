"""A server of S3 (moto) on loopback, and store directories copied to it."""

import re
import sys
from collections import Counter
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from urllib.parse import quote
from urllib.request import Request, urlopen

from pyarrow import fs

from cometmq.admin.node import lasting_port
from tests.architecture.rules import ROOT
from tests.compat.anchor import JavaServer
from tests.packaging.tools import locked_packages

LOCK = ROOT / "requirements" / "s3server.lock"
SECRET = "hush/hush+hush"


@dataclass(frozen=True)
class S3Server:
    """A running server."""

    process: JavaServer

    @property
    def parameters(self) -> str:
        """The parameters of a URL that reach this server."""
        return f"scheme=http&endpoint_override=127.0.0.1:{self.process.port}&region=us-east-1"

    def url(self, place: str, access_key: str = "AKIDTESTS") -> str:
        """The URL of a bucket and folder, with credentials."""
        return f"s3://{access_key}:{quote(SECRET, safe='')}@{place}?{self.parameters}"

    def copy(self, folder: Path, place: str) -> str:
        """Copy a folder to a bucket, file by file, and return its URL."""
        system = self.system()
        system.create_dir(place.partition("/")[0])

        def put(path: Path) -> None:
            with system.open_output_stream(f"{place}/{path.relative_to(folder).as_posix()}") as out:
                out.write(path.read_bytes())

        with ThreadPoolExecutor(4) as pool:
            list(pool.map(put, sorted(each for each in folder.rglob("*") if each.is_file())))
        return self.url(place)

    def system(self) -> fs.S3FileSystem:
        """A connection for the test's own changes."""
        return fs.S3FileSystem(
            access_key="AKIDTESTS", secret_key=SECRET, scheme="http", region="us-east-1",
            endpoint_override=f"127.0.0.1:{self.process.port}", allow_bucket_creation=True,
        )  # fmt: skip

    def requests(self) -> int:
        """Return the number of requests that the server answered."""
        return self.operations().total()

    def operations(self) -> Counter[str]:
        """Return the number of requests that the server answered, by their kind."""
        # The server writes answers with a part of a file in another colour.
        said = re.sub(r"\x1b\[\d*m", "", self.process.output_path.read_text(errors="replace"))
        asked = re.findall(r'"([A-Z]+) (\S+) HTTP/1\.1"', said)
        return Counter("LIST" if "list-type=" in what else method for method, what in asked)

    def refuse_after(self, count: int) -> None:
        """Let this many more requests pass without a known access key."""
        place = f"http://127.0.0.1:{self.process.port}/moto-api/reset-auth"
        text = {"Content-Type": "text/plain"}
        urlopen(Request(place, str(count).encode(), text), timeout=30).close()


@contextmanager
def s3_server(folder: Path) -> Iterator[S3Server]:
    """Start a server, and end it."""
    port = lasting_port()
    packages = locked_packages(LOCK)
    words = [
        "env",
        f"PYTHONPATH={packages}",
        sys.executable,
        "-m",
        "moto.server",
        "-H",
        "127.0.0.1",
    ]
    process = JavaServer("s3", [*words, "-p", str(port)], folder, port)
    process.start()
    try:
        yield S3Server(process)
    finally:
        process.stop()
