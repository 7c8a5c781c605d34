"""cometmq tls: an authority in a folder and the certificates that it signs."""

from __future__ import annotations

import json
import ssl
import stat
from pathlib import Path

import pytest

from cometmq.cli.commands.tls import Issued, init, issue, settings_lines
from cometmq.cli.main import main
from cometmq.core.errors import SettingsError
from cometmq.core.settings import parse_properties
from cometmq.net.outgoing import TlsOptions
from cometmq.net.tls import ClientAuth, ServerTls, TlsMode, TlsSettings
from tests.net.test_outgoing import problem_of, served


def options(folder: Path, client: str = "client") -> TlsOptions:
    ca, certificate, key = (
        str(folder / each) for each in ("ca.pem", f"{client}.pem", f"{client}.key")
    )
    return TlsOptions(ca, certificate, key)


def server(folder: Path, made: Issued) -> TlsSettings:
    return TlsSettings(
        TlsMode.ENFORCING,
        made.certificate,
        made.key,
        str(folder / "ca.pem"),
        ClientAuth.REQUIRE,
    )


async def test_the_files_serve_both_sides(tmp_path: Path) -> None:
    """Clients trust the server and the reverse; a certificate that is issued later counts too."""
    folder = tmp_path / "tls"
    made = {each.name: each for each in init(folder, ["broker.test", "10.1.2.3"]).items}
    assert made["server"].hosts == ["broker.test", "10.1.2.3", "localhost", "127.0.0.1", "::1"]
    later = issue(folder, "second", ["localhost"])
    for each in (made["server"], later):
        async with served(server(folder, each)) as at:
            assert await problem_of(at, options(folder)) == ""
            assert await problem_of(at, options(folder, "server")) == ""
            assert await problem_of(at, TlsOptions(str(folder / "ca.pem"))) != ""
    issue(folder, "reader")
    async with served(server(folder, made["server"])) as at:
        assert await problem_of(at, options(folder, "reader")) == ""


async def test_another_authority_is_not_trusted(tmp_path: Path) -> None:
    made = {each.name: each for each in init(tmp_path / "one").items}
    init(tmp_path / "two")
    async with served(server(tmp_path / "one", made["server"])) as at:
        assert "not signed by" in await problem_of(at, options(tmp_path / "two"))


def test_nobody_else_reads_the_files_and_none_is_overwritten(tmp_path: Path) -> None:
    folder = tmp_path / "tls"
    init(folder, ["a.test"])
    assert stat.S_IMODE(folder.stat().st_mode) == 0o700
    content = {path.name: path.read_bytes() for path in folder.iterdir()}
    assert sorted(content) == [
        "ca.key", "ca.pem", "client.key", "client.pem", "server.key", "server.pem",
    ]  # fmt: skip
    assert {stat.S_IMODE(path.stat().st_mode) for path in folder.iterdir()} == {0o600}
    with pytest.raises(SettingsError, match=r"ca.pem exists; it is not overwritten"):
        init(folder, ["a.test"])
    with pytest.raises(SettingsError, match=r"server.pem exists"):
        issue(folder, "server", ["a.test"])
    (folder / "ca.pem").unlink()
    (folder / "ca.key").unlink()
    with pytest.raises(SettingsError, match=r"server.pem exists"):
        init(folder, ["a.test"])
    left = {path.name: path.read_bytes() for path in folder.iterdir()}
    assert left == {name: content[name] for name in left}


def test_no_key_is_written_where_others_may_write_or_through_a_link(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    folder = tmp_path / "tls"
    folder.mkdir()
    folder.chmod(0o777)
    assert main(["tls", "init", str(folder)]) == 2
    assert f"may write to {folder}: run chmod o-w {folder}" in capsys.readouterr().err
    assert list(folder.iterdir()) == []
    folder.chmod(0o755)
    # The key is written before the certificate, whose name is taken here by a link to nothing.
    (folder / "ca.pem").symlink_to(tmp_path / "elsewhere")
    with pytest.raises(FileExistsError):
        init(folder)
    assert [path.name for path in folder.iterdir()] == ["ca.pem"]
    assert not (tmp_path / "elsewhere").exists()


def test_the_lines_to_paste_are_settings_that_work(tmp_path: Path) -> None:
    values = parse_properties("\n".join(settings_lines(init(tmp_path / "tls").items)))
    settings = TlsSettings(
        TlsMode(values["tls.server.mode"]),
        values["tls.server.certPath"],
        values["tls.server.keyPath"],
        values["tls.server.trustCertPath"],
    )
    tls = ServerTls(settings)
    assert tls.context.verify_mode is ssl.CERT_NONE
    # A line that asks for client certificates may be added: no plain client gets around it.
    assert tls.is_enforced


@pytest.mark.parametrize("host", ["", "a b", "-D", "a/b", "\u00e4.test", "a" * 300])
def test_what_is_no_host(tmp_path: Path, host: str) -> None:
    with pytest.raises(SettingsError, match="'host'"):
        init(tmp_path / "tls", [host])
    assert not (tmp_path / "tls").exists()


@pytest.mark.parametrize("name", ["", "ca", "..", "a/b", "/a"])
def test_what_is_no_name(tmp_path: Path, name: str) -> None:
    init(tmp_path)
    with pytest.raises(SettingsError, match="'name'"):
        issue(tmp_path, name)


def test_a_folder_without_an_authority(tmp_path: Path) -> None:
    with pytest.raises(SettingsError, match=r"there is no .*ca.pem: make an authority"):
        issue(tmp_path, "second")
    (tmp_path / "ca.pem").write_text("nonsense")
    (tmp_path / "ca.key").write_text("nonsense")
    with pytest.raises(SettingsError, match=r"ca.pem or .*ca.key: "):
        issue(tmp_path, "second")


def test_the_command_says_what_was_made(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["tls", "init", str(tmp_path / "tls"), "--host", "a.test"]) == 0
    shown = capsys.readouterr()
    text = shown.out + shown.err
    for name in ("ca.pem", "server.key", "client.pem"):
        assert str(tmp_path / "tls" / name) in text
    assert f"tls.server.certPath={tmp_path / 'tls' / 'server.pem'}" in text
    assert main(["tls", "issue", str(tmp_path / "tls"), "second", "--json"]) == 0
    row = json.loads(capsys.readouterr().out)
    assert row["hosts"] == []
    assert row["certificate"] == str(tmp_path / "tls" / "second.pem")
    assert main(["tls", "init", str(tmp_path / "tls"), "--host", "a.test"]) == 2
    assert "is not overwritten" in capsys.readouterr().err
