"""The one line that is told of a failure."""

import pytest

from cometmq.spark.jobs.job import cause_of
from tests.pace import processor_time_within

WRAPPED = """[PYTHON_DATA_SOURCE_ERROR] Failed when Python data source instance ran `read`:
Traceback (most recent call last):
  File "/x/rows.py", line 3, in batches
    raise DataLoss
cometmq.core.errors.NotConnected: 127.0.0.1:1: refused

During handling of the above exception, another exception occurred:

cometmq.spark.read.losses.DataLoss: offsets 1 to 2 are gone
RuntimeError: wrapped
"""


@pytest.mark.parametrize(
    ("text", "line"),
    [
        (WRAPPED, "offsets 1 to 2 are gone"),
        ("Traceback (most recent call last):\n  x\nKeyError: 'a'\n", "KeyError: 'a'"),
        ("[PATH_NOT_FOUND] Path does not\nexist: /x.\n\nJVM stacktrace:\na.b.C\n\tat d", None),
        ("plain", "plain"),
    ],
)
def test_the_innermost_cause_is_told(text: str, line: str | None) -> None:
    assert cause_of(RuntimeError(text)) == (line or "[PATH_NOT_FOUND] Path does not exist: /x.")


def test_many_empty_lines_are_read_in_one_pass() -> None:
    text = "Traceback (most recent call last):\nx: y\n" + "\n" * 50_000 + "."
    with processor_time_within(2):
        assert cause_of(RuntimeError(text)) == "x: y"
