"""The ACL files: reading, changing over the protocol, and what is refused."""

from __future__ import annotations

import os
from pathlib import Path

import pytest

from cometmq.acl.files import AccountChange, AclFiles
from cometmq.core.errors import AclDenied

ALICE = """
accounts:
  - accessKey: alice-key
    secretKey: alice-secret
    topicPerms:
      - orders=PUB
"""


@pytest.fixture
def files(tmp_path: Path) -> AclFiles:
    """ACL files below an empty directory."""
    return AclFiles(str(tmp_path), lambda: 1_700_000_000_000)


def write(tmp_path: Path, name: str, text: str) -> Path:
    """Write a file below the directory and return its path."""
    path = tmp_path / name
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text(text)
    return path


def test_all_files_count(files: AclFiles, tmp_path: Path) -> None:
    """The default file and every YAML file below conf/acl."""
    write(tmp_path, "conf/plain_acl.yml", ALICE)
    write(tmp_path, "conf/acl/team/b.yaml", ALICE.replace("alice", "bobby"))
    write(tmp_path, "conf/acl/notes.txt", "accounts: 1")
    assert sorted(files.read().rules.accounts) == ["alice-key", "bobby-key"]


def test_without_files_there_are_no_accounts(files: AclFiles) -> None:
    """Such rules refuse everybody."""
    with pytest.raises(AclDenied, match="No acl config"):
        files.read().rules.authenticate("127.0.0.1", {"AccessKey": "alice-key"}, b"")


def test_an_account_is_created_changed_and_deleted(files: AclFiles, tmp_path: Path) -> None:
    """A change keeps what it does not name, and counts the file's version up."""
    files.put_account(AccountChange("alice-key", "alice-secret", topic_perms=["orders=PUB"]))
    files.put_account(AccountChange("alice-key", default_topic_perm="SUB"))
    content = files.read()
    path = str(tmp_path / "conf/plain_acl.yml")
    account = content.rules.accounts["alice-key"]
    assert account.secret_key == "alice-secret"
    assert set(account.resources) == {"orders"}
    assert (content.versions[path].counter, content.versions[path].timestamp) == (
        2, 1_700_000_000_000,
    )  # fmt: skip
    assert os.stat(path).st_mode & 0o777 == 0o600
    assert files.delete_account("alice-key")
    assert not files.delete_account("alice-key")
    assert files.read().rules.accounts == {}


def test_an_account_stays_in_its_file(files: AclFiles, tmp_path: Path) -> None:
    """The default file is for new accounts; the mode of a file is kept."""
    path = write(tmp_path, "conf/acl/a.yml", ALICE)
    path.chmod(0o640)
    files.put_account(AccountChange("alice-key", admin=True))
    assert files.read().rules.accounts["alice-key"].is_admin
    assert path.stat().st_mode & 0o777 == 0o640
    assert [each.name for each in path.parent.iterdir()] == ["a.yml"]
    assert not (tmp_path / "conf/plain_acl.yml").exists()


@pytest.mark.parametrize(
    ("change", "problem"),
    [
        (AccountChange("short", "12345678"), "accessKey=short"),
        (AccountChange("alice-key", "123"), "secretKey of accessKey=alice-key"),
        (AccountChange("bobby-key"), "secretKey of accessKey=bobby-key"),
        (AccountChange("alice-key", topic_perms=["orders"]), "'orders' must have the form"),
        (AccountChange("alice-key", white_remote_address="10.0.0"), "not an IP address"),
    ],
)
def test_an_invalid_change_changes_nothing(
    files: AclFiles, tmp_path: Path, change: AccountChange, problem: str
) -> None:
    """The error says what is wrong, and the file is as before."""
    path = write(tmp_path, "conf/plain_acl.yml", ALICE)
    with pytest.raises(AclDenied) as caught:
        files.put_account(change)
    assert problem in str(caught.value)
    assert path.read_text() == ALICE


def test_the_white_list_of_a_file(files: AclFiles, tmp_path: Path) -> None:
    """Only ACL files can be named, so no request writes anywhere else."""
    path = write(tmp_path, "conf/acl/a.yml", ALICE)
    files.set_white_list(["10.0.0.*"], str(path))
    files.set_white_list(["10.0.1.*"])
    rules = files.read().rules
    assert rules.is_white_listed("10.0.0.1")
    assert rules.is_white_listed("10.0.1.1")
    other = tmp_path / "other.yml"
    for name in (str(other), str(tmp_path / "conf/acl/../../other.yml"), "/etc/passwd"):
        with pytest.raises(AclDenied, match="is none of the ACL files"):
            files.set_white_list(["*"], name)
    assert not other.exists()
    with pytest.raises(AclDenied, match="'nonsense' is not an IP address"):
        files.set_white_list(["nonsense"])


@pytest.mark.parametrize(
    ("text", "problem"),
    [
        ("accounts: [", "line 1, column 12"),
        ("- a\n- b", "must have keys"),
        ("accounts: 1", "accounts must be a list"),
        ("accounts: [1]", "an entry of accounts is not a set of fields"),
        ("a: " + "[" * 10_000, "plain_acl.yml"),
        ("accounts: !!python/object/apply:os.system [ls]", "is not a set of fields"),
        ("accounts: *hidden-secret", "is not YAML: line 1, column 11"),
    ],
)
def test_an_invalid_file_names_its_place(
    files: AclFiles, tmp_path: Path, text: str, problem: str
) -> None:
    """The error names the file and what is wrong with it."""
    write(tmp_path, "conf/plain_acl.yml", text)
    with pytest.raises(AclDenied, match=r"plain_acl\.yml") as caught:
        files.read()
    assert problem in str(caught.value)


def test_all_values_are_texts(files: AclFiles, tmp_path: Path) -> None:
    """A secret of digits is the one that is written, whatever YAML would make of it."""
    digits = "accounts:\n- accessKey: 01234567012345\n  secretKey: 2024-13-45\n  admin: true\n"
    path = write(tmp_path, "conf/plain_acl.yml", digits)
    account = files.read().rules.accounts["01234567012345"]
    assert (account.secret_key, account.is_admin) == ("2024-13-45", True)
    files.put_account(AccountChange("bobby-key", "12345678"))
    assert files.read().rules.accounts["01234567012345"] == account
    assert "admin: true\n" in path.read_text()
    assert "counter: 1\n" in path.read_text()


def test_a_repeated_account_is_changed_and_deleted_whole(files: AclFiles, tmp_path: Path) -> None:
    """No older secret comes into force instead."""
    twice = ALICE + ALICE.partition("accounts:\n")[2].replace("alice-secret", "older-secret")
    write(tmp_path, "conf/plain_acl.yml", twice)
    write(tmp_path, "conf/acl/b.yml", ALICE.replace("alice-secret", "other-secret"))
    files.put_account(AccountChange("alice-key", "newer-secret"))
    assert files.read().rules.accounts["alice-key"].secret_key == "newer-secret"
    assert files.delete_account("alice-key")
    assert files.read().rules.accounts == {}


def test_a_directory_that_cannot_be_listed_is_an_error(
    files: AclFiles, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Its accounts must not vanish."""
    write(tmp_path, "conf/acl/a.yml", ALICE)

    def scandir(path: str) -> object:
        raise OSError(24, "Too many open files", path)

    monkeypatch.setattr(os, "scandir", scandir)
    with pytest.raises(OSError, match="Too many open files"):
        files.fingerprint()


def test_a_change_of_any_file_shows(files: AclFiles, tmp_path: Path) -> None:
    """A new file, a changed one and a removed one change the fingerprint."""
    seen = {files.fingerprint()}
    path = write(tmp_path, "conf/acl/a.yml", ALICE)
    seen.add(files.fingerprint())
    path.write_text(ALICE + "# more\n")
    seen.add(files.fingerprint())
    write(tmp_path, "conf/plain_acl.yml", ALICE)
    seen.add(files.fingerprint())
    path.unlink()
    seen.add(files.fingerprint())
    assert len(seen) == 5
