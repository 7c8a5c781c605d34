"""The property file in which a server keeps the settings that were changed while it ran.

At the next start these settings override the server's own property file and its command line. A
setting stays changed until it is changed again, or its line is removed while the server is stopped.
Java servers ignore the file.
"""

from __future__ import annotations

import os
from collections.abc import Mapping
from typing import Final

from cometmq.core.errors import SettingsError
from cometmq.core.settings import format_properties, normalise, parse_properties
from cometmq.store.files import Files, make_durable_directory, read_file, write_file_atomically

_HEADER: Final = (
    "# Settings that were changed while the server ran. They override its property file and its\n"
    "# command line. To undo a change, stop the server and remove the line.\n"
)


def read_kept_settings(path: str, files: Files) -> dict[str, str]:
    """Return the settings of the file at ``path``; none if there is no file.

    Raises SettingsError for a line that is no setting, OSError if the file cannot be read.
    """
    raw = read_file(files, path)
    try:
        return {} if raw is None else parse_properties(raw.decode("utf-8", "replace"))
    except SettingsError as error:
        raise SettingsError(error.key, error.problem, where=path) from None


def keep_settings(path: str, changed: Mapping[str, str], files: Files) -> None:
    """Add settings to the file at ``path``, or replace them there. Durable on return.

    Raises the errors of :func:`read_kept_settings`, and OSError if the file cannot be written.
    """
    kept = {
        normalise(key): (key, value)
        for settings in (read_kept_settings(path, files), changed)
        for key, value in settings.items()
    }
    make_durable_directory(files, os.path.dirname(path))
    text = _HEADER + format_properties(dict(kept.values()))
    write_file_atomically(files, path, text.encode(), durable=True)
