"""File systems that are no place for a store."""

import tempfile
from pathlib import Path

import pytest

from cometmq.store.files import PosixFiles
from cometmq.store.recovery.mounts import Mount, find_mount, mount_of, parse_mounts, warn_of_mounts

TEXT = r"""22 27 0:21 / /proc rw,relatime - proc proc rw
27 1 254:0 / / rw,relatime shared:1 - ext4 /dev/vda rw
40 27 0:50 / /mnt/shared\040disk rw - nfs4 server:/export\040a rw
41 27 0:51 / /var/lib/x rw - ext4 /dev/vdb rw
42 41 0:52 / /var/lib/x rw - overlay overlay rw,lowerdir=/a
no mount at all
43 27 0:53 / /short - ext4
44 27 0:54 / /run rw - tmpfs tmpfs rw
"""


def test_mounts_are_read() -> None:
    found = parse_mounts(TEXT)
    assert len(found) == 6
    assert found[2] == Mount("/mnt/shared disk", "nfs4", "server:/export a")
    assert parse_mounts("") == []


@pytest.mark.parametrize(
    ("path", "point", "risk"),
    [
        ("/data/store", "/", ""),
        ("/mnt/shared disk/store", "/mnt/shared disk", "network"),
        ("/mnt/shared diskette", "/", ""),
        ("/var/lib/x", "/var/lib/x", "container"),
        ("/run/store", "/run", ""),
    ],
)
def test_the_deepest_and_last_mount_counts(path: str, point: str, risk: str) -> None:
    mount = mount_of(parse_mounts(TEXT), path)
    assert mount is not None
    assert mount.point == point
    assert risk in mount.risk
    assert bool(mount.risk) is bool(risk)


class OtherMounts(PosixFiles):
    """Says what is mounted, whatever is."""

    def __init__(self, text: str) -> None:
        self.text = text

    def mounts(self) -> str:
        return self.text


def test_a_warning_says_which_directory_and_why(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    root = f"{tmp_path.resolve()}"
    text = f"27 1 254:0 / / rw - ext4 /dev/vda rw\n28 27 0:1 / {root}/log rw - nfs a:/b rw\n"
    files = OtherMounts(text)
    (tmp_path / "log").mkdir()
    (tmp_path / "link").symlink_to(tmp_path / "log")
    warn_of_mounts(files, root, str(tmp_path / "link"))
    assert caplog.text.count("store_on_risky_file_system") == 1
    assert "type=nfs" in caplog.text
    assert f"path={tmp_path / 'link'}" in caplog.text
    assert find_mount(OtherMounts(""), root) is None


def test_this_machine_tells() -> None:
    assert find_mount(PosixFiles(), tempfile.gettempdir()) is not None
