"""Store directories and archives behind URLs: on object storage or HDFS, opened through Arrow.

A URL is one text, ``s3://BUCKET/FOLDER?endpoint_override=...``, that tasks carry to their process,
which opens the file system for itself. It may have credentials, so only what :func:`shown` returns
of it gets into errors and logs.

Each request costs some milliseconds. So folders, files and the pages around small reads are kept
until :func:`forget`, which plans and tasks call when they begin, and large reads in sequence read
ahead. A plan may look at several files at once.
"""

from __future__ import annotations

import errno
import os
import re
from collections import OrderedDict
from collections.abc import Iterator, Mapping
from concurrent.futures import Future, ThreadPoolExecutor
from contextlib import contextmanager
from functools import lru_cache
from threading import Lock
from typing import TYPE_CHECKING, Any, Final, TypeVar
from urllib.parse import quote, unquote, urlsplit, urlunsplit

from cometmq.core.errors import CometError

if TYPE_CHECKING:
    from types import TracebackType

SCHEMES: Final = ("s3", "hdfs", "file")

PAGE_BYTES: Final = 128 << 10
"""Bytes read around a small read. They take little longer than the request itself, and a search
for the end of a queue needs few of them."""

PAGES_MAX: Final = 512
FILES_MAX: Final = 2_048
"""Most open files that are kept. One of S3 is a name and a size, no connection."""

AHEAD_BYTES_MAX: Final = 8 << 20
"""Most bytes that a read in sequence asks for at once."""

_K = TypeVar("_K")
_V = TypeVar("_V")
_BUCKET: Final = re.compile(r"[\w.-]+", re.ASCII)


class StoreUnreadable(CometError):
    """Raised if files of a store or archive cannot be listed or read at ``url``, which is without
    credentials."""

    def __init__(self, url: str, problem: str) -> None:
        self.url = url
        self.problem = problem
        super().__init__(
            f"{url} cannot be read: {problem}; check its parameters (endpoint_override, scheme, "
            "region), the credentials, and that driver and executors reach the server"
        )


def is_url(path: str) -> bool:
    """Return whether a path is a URL, and no folder of this machine."""
    return "://" in path


def checked(text: str) -> str:
    """Return a URL or a local path as given, and the path of a ``file`` URL.

    Raises ValueError, without the text if that may have credentials.
    """
    if not is_url(text):
        return text
    parts = urlsplit(text)
    if parts.scheme not in SCHEMES:
        near = "; write s3://" if parts.scheme in ("s3a", "s3n") else ""
        raise ValueError(f"has a URL with {parts.scheme!r}, not {', '.join(SCHEMES)}{near}")
    if parts.scheme == "file":
        if parts.netloc not in ("", "localhost"):
            raise ValueError(f"a file URL has three slashes, not the host {_host(parts.netloc)!r}")
        return unquote(parts.path)
    is_named = parts.scheme != "s3" or _BUCKET.fullmatch(_host(parts.netloc))
    if not is_named or parts.fragment or "@" in parts.path:
        raise ValueError(
            f"has a URL with {parts.scheme} that names no host or bucket: percent-encode special "
            "characters (%2F for /, %23 for #), or give credentials in the environment"
        )
    return text


def shown(path: str) -> str:
    """Return a path or URL without credentials and parameters."""
    if not is_url(path):
        return path
    parts = urlsplit(path)
    return f"{parts.scheme}://{_host(parts.netloc)}{unquote(parts.path)}"


def place_of(path: str) -> str:
    """Return the folders of a path; the first of a URL is its bucket or host."""
    return "/" + shown(path).split("://", 1)[1].rstrip("/") if is_url(path) else path


def joined(folder: str, *names: str) -> str:
    """Return the path or URL of what is in a folder."""
    if not is_url(folder):
        return os.path.join(folder, *names)
    parts = urlsplit(folder)
    below = "/".join((parts.path.rstrip("/"), *(quote(name, safe="") for name in names)))
    return urlunsplit(parts._replace(path=below))


def _host(netloc: str) -> str:
    return netloc.rpartition("@")[2]


class _Kept:
    """Folders with the sizes of their files, open files and pages, kept until :func:`forget`."""

    def __init__(self) -> None:
        self.folders: dict[str, dict[str, int]] = {}
        self.states: dict[str, int] = {}
        self.files: OrderedDict[str, tuple[Any, int]] = OrderedDict()
        self.pages: OrderedDict[tuple[str, int], bytes] = OrderedDict()
        self._lock = Lock()

    def clear(self) -> None:
        """Forget all."""
        with self._lock:
            self.folders.clear()
            self.states.clear()
            self.files.clear()
            self.pages.clear()

    def file(self, url: str) -> tuple[Any, int] | None:
        """Return an open file and its size, if it is kept."""
        with self._lock:
            return _latest(self.files, url)

    def keep_file(self, url: str, found: tuple[Any, int]) -> None:
        """Keep an open file and its size."""
        with self._lock:
            _keep(self.files, url, found, FILES_MAX)

    def page(self, key: tuple[str, int]) -> bytes | None:
        """Return a page of a file, if it is kept."""
        with self._lock:
            return _latest(self.pages, key)

    def keep_page(self, key: tuple[str, int], page: bytes) -> None:
        """Keep a page of a file."""
        with self._lock:
            _keep(self.pages, key, page, PAGES_MAX)


def _latest(kept: OrderedDict[_K, _V], key: _K) -> _V | None:
    found = kept.get(key)
    if found is not None:
        kept.move_to_end(key)
    return found


def _keep(kept: OrderedDict[_K, _V], key: _K, value: _V, count_max: int) -> None:
    kept[key] = value
    kept.move_to_end(key)
    while len(kept) > count_max:
        kept.popitem(last=False)


_kept: Final = _Kept()


def forget() -> None:
    """Look at all folders and files again: a plan or a task begins, and they may have changed."""
    _kept.clear()


def listed(folder: str) -> Mapping[str, int]:
    """Return the names in a folder, with the sizes of files. Raises FileNotFoundError,
    StoreUnreadable."""
    if folder not in _kept.folders:
        _kept.folders[folder] = _names_in(folder)
    return _kept.folders[folder]


def forget_listed(folder: str) -> None:
    """List a folder again at the next call of :func:`listed`."""
    _kept.folders.pop(folder, None)


def list_below(folder: str) -> None:
    """List a folder with all those in it, which takes fewer requests than one by one. Raises
    FileNotFoundError, StoreUnreadable."""
    if folder not in _kept.states:
        infos = _infos(folder, recursive=True)
        _kept.folders.update({folder: {}, **_entries(folder, infos)})
        _kept.states[folder] = _state(infos)


def has_changed_below(folder: str) -> bool:
    """Return whether files below a folder were added, removed or written since
    :func:`list_below`, or that did not list it. Raises StoreUnreadable."""
    try:
        return _state(_infos(folder, recursive=True)) != _kept.states.get(folder)
    except FileNotFoundError:
        return True


def names_now(folder: str) -> list[str]:
    """Return the names in a folder as they are now, sorted, none if it is missing. Raises
    StoreUnreadable."""
    try:
        return sorted(_names_in(folder))
    except FileNotFoundError:
        return []


def _names_in(folder: str) -> dict[str, int]:
    return _entries(folder, _infos(folder, recursive=False)).get(folder, {})


def _infos(folder: str, *, recursive: bool) -> list[Any]:
    """Return what Arrow tells of what is in a folder and, if ``recursive``, of all below."""
    from pyarrow import fs

    system, path = _located(folder)
    with reading(folder):
        infos: list[Any] = system.get_file_info(fs.FileSelector(path, recursive=recursive))
    return infos


def _state(infos: list[Any]) -> int:
    """Return a number that differs if any file has another size or time of writing."""
    return hash(frozenset((info.path, info.size, info.mtime_ns) for info in infos))


def _entries(folder: str, infos: list[Any]) -> dict[str, dict[str, int]]:
    """Return the names in each folder, with the sizes of files."""
    _, path = _located(folder)
    found: dict[str, dict[str, int]] = {}
    for info in infos:
        *folders, name = info.path.removeprefix(path).strip("/").split("/")
        within = folder
        for each in folders:
            found.setdefault(within, {}).setdefault(each, 0)
            within = joined(within, each)
        found.setdefault(within, {})[name] = info.size or 0
    return found


class RemoteFile:
    """A file behind a URL, read like a ``FileIO``. Its last window of bytes is kept, and after
    :meth:`read_on` the next one is fetched while it is used."""

    def __init__(self, url: str, source: Any, size_bytes: int) -> None:
        """Create from an open Arrow file."""
        self._url = url
        self._source = source
        self._size_bytes = size_bytes
        self._position = 0
        self._window = b""
        self._window_start = 0
        self._ahead_bytes = 0
        self._until = 0
        self._thread: ThreadPoolExecutor | None = None
        self._next: Future[bytes] | None = None
        self._next_start = 0

    def __enter__(self) -> RemoteFile:
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        self._window = b""
        self._next = None
        if self._thread is not None:
            self._thread.shutdown(cancel_futures=True)
            self._thread = None

    def read_on(self, stop: int) -> None:
        """Expect to be read in sequence up to ``stop``: large windows at once, and none beyond."""
        self._until = min(stop, self._size_bytes)
        self._ahead_bytes = AHEAD_BYTES_MAX
        if self._thread is None:
            self._thread = ThreadPoolExecutor(1)

    def seek(self, position: int, whence: int = os.SEEK_SET) -> int:
        """Move to a position and return it. Object storage has no holes: all of a file is data.
        Raises OSError if there is no data."""
        if whence == os.SEEK_END:
            position += self._size_bytes
        elif whence == os.SEEK_DATA and position >= self._size_bytes:
            raise OSError(errno.ENXIO, "no data follows", shown(self._url))
        self._position = position
        return position

    def read(self, size: int) -> bytes:
        """Read up to ``size`` bytes. Raises FileNotFoundError, StoreUnreadable."""
        start, stop = self._position, min(self._position + size, self._size_bytes)
        if stop <= start:
            return b""
        self._position = stop
        if stop - start >= PAGE_BYTES or self._has(start, stop):
            return self._large(start, stop)
        return self._small(start, stop)

    def _has(self, start: int, stop: int) -> bool:
        window_stop = self._window_start + len(self._window)
        return self._window_start <= start and stop <= window_stop

    def _small(self, start: int, stop: int) -> bytes:
        first, last = start // PAGE_BYTES, (stop - 1) // PAGE_BYTES
        found = b"".join(self._page(number) for number in range(first, last + 1))
        return found[start - first * PAGE_BYTES : stop - first * PAGE_BYTES]

    def _page(self, number: int) -> bytes:
        key = (self._url, number)
        page = _kept.page(key)
        if page is None:
            start = number * PAGE_BYTES
            page = self._fetch(start, min(start + PAGE_BYTES, self._size_bytes))
            _kept.keep_page(key, page)
        return page

    def _large(self, start: int, stop: int) -> bytes:
        window_stop = self._window_start + len(self._window)
        follows = self._window_start <= start <= window_stop
        if not self._has(start, stop):
            had = self._window[start - self._window_start :] if follows else b""
            if self._thread is None:
                # Twice as much at each step: a search that ends soon has read little in vain.
                self._ahead_bytes = min(2 * self._ahead_bytes, AHEAD_BYTES_MAX) if follows else 0
                end = min(max(stop, start + self._ahead_bytes), self._size_bytes)
                self._ahead_bytes = max(self._ahead_bytes, end - start)
                self._window = had + self._fetch(start + len(had), end)
            else:
                self._window = had + self._in_sequence(start + len(had), stop)
            self._window_start = start
        at = start - self._window_start
        return self._window[at : at + stop - start]

    def _in_sequence(self, start: int, stop: int) -> bytes:
        """Return the bytes from ``start`` to ``stop`` or further, and begin to fetch the next."""
        found = b""
        if self._next is not None and self._next_start == start:
            found = self._next.result()
        if start + len(found) < stop:
            wanted = max(stop, min(start + self._ahead_bytes, self._until))
            found += self._fetch(start + len(found), wanted)
        following = start + len(found)
        end = min(following + self._ahead_bytes, self._until)
        self._next = None
        if self._thread is not None and following < end:
            self._next = self._thread.submit(self._fetch, following, end)
            self._next_start = following
        return found

    def _fetch(self, start: int, stop: int) -> bytes:
        with reading(self._url):
            found: bytes = self._source.read_at(stop - start, start)
        if len(found) < stop - start:
            raise StoreUnreadable(shown(self._url), "it became shorter while it was read")
        return found


def open_url(url: str) -> RemoteFile:
    """Open a file behind a URL. Raises FileNotFoundError, StoreUnreadable."""
    found = _kept.file(url)
    if found is None:
        source = arrow_file(url)
        with reading(url):
            found = source, source.size()
        _kept.keep_file(url, found)
    return RemoteFile(url, *found)


def arrow_file(url: str) -> Any:
    """Open a file behind a URL as Arrow's own. Raises FileNotFoundError, StoreUnreadable."""
    system, path = _located(url)
    with reading(url):
        return system.open_input_file(path)


def _located(url: str) -> tuple[Any, str]:
    """Return the file system of a URL, and the path in it."""
    parts = urlsplit(url)
    with reading(url):
        system, top = _file_system(parts.scheme, parts.netloc, parts.query, os.getpid())
    return system, (top.rstrip("/") + unquote(parts.path)).rstrip("/") or "/"


@lru_cache(16)
def _file_system(scheme: str, netloc: str, query: str, pid: int) -> tuple[Any, str]:
    """Return a file system, and the path of its top folder or bucket. Connections do not outlive a
    fork, so each process has its own."""
    from pyarrow import fs

    found: tuple[Any, str] = fs.FileSystem.from_uri(urlunsplit((scheme, netloc, "/", query, "")))
    return found


@contextmanager
def reading(url: str) -> Iterator[None]:
    """Turn the errors of Arrow into FileNotFoundError and StoreUnreadable, without credentials."""
    try:
        yield
    except FileNotFoundError:
        raise FileNotFoundError(errno.ENOENT, "no such file", shown(url)) from None
    except (OSError, ValueError, NotImplementedError) as error:
        if _is_gone(str(error)):
            raise FileNotFoundError(errno.ENOENT, "no such file", shown(url)) from None
        problem = (str(error).splitlines() or [type(error).__name__])[0]
        raise StoreUnreadable(shown(url), without_credentials(url, problem)) from None


def _is_gone(problem: str) -> bool:
    """Return whether S3 says that an open file was deleted."""
    return "NO_SUCH_KEY" in problem


def without_credentials(url: str, problem: str) -> str:
    """Return what a server or client says of a URL, without its credentials."""
    login = urlsplit(url).netloc.rpartition("@")[0]
    for part in (login, *login.split(":", 1)):
        for secret in (part, unquote(part)):
            if secret:
                problem = problem.replace(secret, "***")
    return problem
