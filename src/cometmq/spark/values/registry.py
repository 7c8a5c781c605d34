"""A schema registry with Confluent's HTTP API: schemas by their ids and by subjects.

    GET /schemas/ids/ID                       {"schema": "..."}
    GET /subjects/SUBJECT/versions/latest     {"id": 7, "version": 2, "schema": "..."}

The schema of an id never changes, so each id is requested once per process.
"""

from __future__ import annotations

import base64
import http.client
from functools import lru_cache
from typing import Final
from urllib.error import HTTPError
from urllib.parse import quote, unquote, urlsplit, urlunsplit
from urllib.request import Request, urlopen

import msgspec

from cometmq.core.errors import CometError, SettingsError

_TIMEOUT_S: Final = 10
_TRIES: Final = 3
_SCHEMA_BYTES_MAX: Final = 4 << 20
_NOT_FOUND: Final = 404


class RegistryFailed(CometError):
    """Raised if a request to ``url`` of the registry fails: no answer, an error status, or an
    answer without a schema."""

    def __init__(self, url: str, reason: str) -> None:
        self.url = url
        self.reason = reason
        super().__init__(f"the schema registry did not answer {url}: {reason}")


class SchemaUnknown(CometError):
    """Raised if the registry has no schema ``name``."""

    def __init__(self, name: str, registry: str) -> None:
        self.name = name
        super().__init__(f"the registry {registry} has no schema {name}")


class _Answer(msgspec.Struct):
    schema: str


class Registry:
    """The registry at ``url``; a user and a password in it are sent as basic authentication.

    Raises SettingsError for a URL that is not ``http`` or ``https``.
    """

    def __init__(self, url: str) -> None:
        parts = urlsplit(url)
        if parts.scheme not in ("http", "https") or not parts.hostname:
            raise SettingsError("registry", "must be a URL such as http://host:8081")
        host = parts.hostname if parts.port is None else f"{parts.hostname}:{parts.port}"
        self.url = urlunsplit((parts.scheme, host, parts.path.rstrip("/"), "", ""))
        self._account = ""
        if parts.username is not None:
            pair = f"{unquote(parts.username)}:{unquote(parts.password or '')}"
            self._account = base64.b64encode(pair.encode()).decode()

    def schema(self, schema_id: int) -> str:
        """Return a schema by its id. Raises SchemaUnknown, RegistryFailed."""
        return _asked(self.url, f"/schemas/ids/{schema_id}", self._account)

    def newest(self, subject: str) -> str:
        """Return the newest schema of a subject. Raises SchemaUnknown, RegistryFailed."""
        path = f"/subjects/{quote(subject, safe='')}/versions/latest"
        return _fetched(self.url, path, self._account)


@lru_cache(maxsize=1024)
def _asked(url: str, path: str, account: str) -> str:
    return _fetched(url, path, account)


def _fetched(url: str, path: str, account: str) -> str:
    """Return the schema in the response to a GET request, which is tried _TRIES times."""
    headers = {"Accept": "application/vnd.schemaregistry.v1+json, application/json"}
    if account:
        headers["Authorization"] = f"Basic {account}"
    reason = ""
    for _ in range(_TRIES):
        try:
            with urlopen(Request(url + path, headers=headers), timeout=_TIMEOUT_S) as answer:
                text = answer.read(_SCHEMA_BYTES_MAX + 1)
        except HTTPError as error:
            error.close()
            if error.code == _NOT_FOUND:
                raise SchemaUnknown(path, url) from None
            reason = f"status {error.code}"
        except (OSError, http.client.HTTPException) as error:
            reason = str(error)
        else:
            return _schema_in(text, url + path)
    raise RegistryFailed(url + path, reason)


def _schema_in(text: bytes, url: str) -> str:
    if len(text) > _SCHEMA_BYTES_MAX:
        raise RegistryFailed(url, f"more than {_SCHEMA_BYTES_MAX} bytes")
    try:
        return msgspec.json.decode(text, type=_Answer).schema
    except msgspec.DecodeError as error:
        raise RegistryFailed(url, f"not a schema: {error}") from None
