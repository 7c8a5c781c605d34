"""Store directories and archives behind URLs: on object storage or HDFS, opened through Arrow.

A URL is one text, ``s3://BUCKET/FOLDER?endpoint_override=...``, that tasks receive with their plan;
each process opens the file system for itself. A URL may have credentials, so errors and logs
contain only the result of :func:`shown`.

Each request costs some milliseconds. Lists of folders, open files, and the pages around small reads
are therefore cached until :func:`forget`, which plans and tasks call when they begin. Large reads
in sequence read ahead. Several threads of a plan may use the cache.
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
"""Size of the page that is read for a small read. It takes little longer than the request itself,
and a search for the end of a queue needs few pages."""

PAGES_MAX: Final = 512
FILES_MAX: Final = 2_048
"""Maximum numbers of cached pages and open files. An open file of S3 is a name and a size, and no
connection."""

AHEAD_BYTES_MAX: Final = 8 << 20
"""Maximum number of bytes that a read in sequence requests at once."""

_K = TypeVar("_K")
_V = TypeVar("_V")
_BUCKET: Final = re.compile(r"[\w.-]+", re.ASCII)


class StoreUnreadable(CometError):
    """Raised if files of a store or archive cannot be listed or read at ``url``, which the caller
    gives without credentials."""

    def __init__(self, url: str, problem: str) -> None:
        self.url = url
        self.problem = problem
        super().__init__(
            f"{url} cannot be read: {problem}; check its parameters (endpoint_override, scheme, "
            "region), the credentials, and that driver and executors reach the server"
        )


def is_url(path: str) -> bool:
    """Return whether a path is a URL, and not a path of this machine."""
    return "://" in path


def checked(text: str) -> str:
    """Return a valid URL or local path unchanged, and a ``file`` URL as a local path.

    Raises ValueError for an invalid URL; its message has no credentials.
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
    """Return a local path unchanged, and a URL as a path whose first folder is the bucket or
    host."""
    return "/" + shown(path).split("://", 1)[1].rstrip("/") if is_url(path) else path


def joined(folder: str, *names: str) -> str:
    """Return the path or URL of an entry ``names`` below a folder."""
    if not is_url(folder):
        return os.path.join(folder, *names)
    parts = urlsplit(folder)
    below = "/".join((parts.path.rstrip("/"), *(quote(name, safe="") for name in names)))
    return urlunsplit(parts._replace(path=below))


def _host(netloc: str) -> str:
    return netloc.rpartition("@")[2]


class _Kept:
    """The cache: folders with the sizes of their files, states of folders (:func:`_state`), open
    files, and pages by URL and number."""

    def __init__(self) -> None:
        self.folders: dict[str, dict[str, int]] = {}
        self.states: dict[str, int] = {}
        self.files: OrderedDict[str, tuple[Any, int]] = OrderedDict()
        self.pages: OrderedDict[tuple[str, int], bytes] = OrderedDict()
        self._lock = Lock()

    def clear(self) -> None:
        """Remove all entries."""
        with self._lock:
            self.folders.clear()
            self.states.clear()
            self.files.clear()
            self.pages.clear()

    def file(self, url: str) -> tuple[Any, int] | None:
        """Return an open file and its size, if it is cached."""
        with self._lock:
            return _latest(self.files, url)

    def keep_file(self, url: str, found: tuple[Any, int]) -> None:
        """Cache an open file and its size."""
        with self._lock:
            _keep(self.files, url, found, FILES_MAX)

    def page(self, key: tuple[str, int]) -> bytes | None:
        """Return a page of a file, if it is cached."""
        with self._lock:
            return _latest(self.pages, key)

    def keep_page(self, key: tuple[str, int], page: bytes) -> None:
        """Cache a page of a file."""
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
    """Clear the cache. Plans and tasks call this when they begin: files may have changed."""
    _kept.clear()


def listed(folder: str) -> Mapping[str, int]:
    """Return the names in a folder with the sizes of files (0 for a folder), from the cache if
    possible. Raises FileNotFoundError, StoreUnreadable."""
    if folder not in _kept.folders:
        _kept.folders[folder] = _names_in(folder)
    return _kept.folders[folder]


def forget_listed(folder: str) -> None:
    """Remove a folder from the cache, so that :func:`listed` lists it again."""
    _kept.folders.pop(folder, None)


def list_below(folder: str) -> None:
    """Cache the lists of a folder and of all folders in it, which takes fewer requests than to list
    each. Raises FileNotFoundError, StoreUnreadable."""
    if folder not in _kept.states:
        infos = _infos(folder, recursive=True)
        _kept.folders.update({folder: {}, **_entries(folder, infos)})
        _kept.states[folder] = _state(infos)


def has_changed_below(folder: str) -> bool:
    """Return whether files below a folder were added, removed or written since :func:`list_below`;
    True if that has not been called. Raises StoreUnreadable."""
    try:
        return _state(_infos(folder, recursive=True)) != _kept.states.get(folder)
    except FileNotFoundError:
        return True


def names_now(folder: str) -> list[str]:
    """Return the names in a folder, sorted and without the cache; none if the folder is missing.
    Raises StoreUnreadable."""
    try:
        return sorted(_names_in(folder))
    except FileNotFoundError:
        return []


def _names_in(folder: str) -> dict[str, int]:
    return _entries(folder, _infos(folder, recursive=False)).get(folder, {})


def _infos(folder: str, *, recursive: bool) -> list[Any]:
    """Return Arrow's FileInfo of each entry in a folder and, if ``recursive``, of all below."""
    from pyarrow import fs

    system, path = _located(folder)
    with reading(folder):
        infos: list[Any] = system.get_file_info(fs.FileSelector(path, recursive=recursive))
    return infos


def _state(infos: list[Any]) -> int:
    """Return a hash of the names, sizes and modification times of files."""
    return hash(frozenset((info.path, info.size, info.mtime_ns) for info in infos))


def _entries(folder: str, infos: list[Any]) -> dict[str, dict[str, int]]:
    """Return the names in each folder with the sizes of files; ``infos`` are of all below
    ``folder``."""
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
    """A file behind a URL, with the methods of ``FileIO`` that store/files.py uses.

    A small read is served from cached pages. A large read fetches a window of bytes, which is kept;
    after :meth:`read_on`, a thread fetches the next window meanwhile.
    """

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
        """Prepare for reads in sequence up to ``stop``: windows of AHEAD_BYTES_MAX, the next one
        fetched in advance, and none beyond ``stop``."""
        self._until = min(stop, self._size_bytes)
        self._ahead_bytes = AHEAD_BYTES_MAX
        if self._thread is None:
            self._thread = ThreadPoolExecutor(1)

    def seek(self, position: int, whence: int = os.SEEK_SET) -> int:
        """Move to a position and return it. Files of object storage have no holes, so SEEK_DATA
        finds data at once. Raises OSError for SEEK_DATA at the end."""
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
        """Return bytes from the window, after fetching a window that has them."""
        window_stop = self._window_start + len(self._window)
        follows = self._window_start <= start <= window_stop
        if not self._has(start, stop):
            had = self._window[start - self._window_start :] if follows else b""
            if self._thread is None:
                # Double the window at each step, so that a search that ends soon wastes little.
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
        """Return the bytes from ``start`` to ``stop`` or further, and start to fetch those after
        them."""
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
    """Open a file behind a URL as an Arrow file. Raises FileNotFoundError, StoreUnreadable."""
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
    """Return a file system, and the path of its top folder or bucket. Connections cannot be used
    after a fork, so ``pid`` is part of the cache's key."""
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
    """Return whether an error text of S3 means that an open file was deleted."""
    return "NO_SUCH_KEY" in problem


def without_credentials(url: str, problem: str) -> str:
    """Return an error text about a URL with the URL's credentials replaced."""
    login = urlsplit(url).netloc.rpartition("@")[0]
    for part in (login, *login.split(":", 1)):
        for secret in (part, unquote(part)):
            if secret:
                problem = problem.replace(secret, "***")
    return problem
