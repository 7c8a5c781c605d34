"""Work shared out to processes."""

from pathlib import Path

import pytest

from cometmq.store.tools import jobs
from tests.store.tools.verifying import flip_byte, log_file, records_in, verified


def test_several_processes_find_the_same(sealed: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    record = records_in(sealed)[7]
    flip_byte(*log_file(sealed, record.physical_offset + 90))
    alone = verified(sealed)
    monkeypatch.setattr(jobs, "ALONE_BYTES", 0)
    assert verified(sealed, processes=2) == alone
    assert not alone.is_sound
