"""Pages whose commands are servers: they run as they stand, with ports and folders of the test.

What each case changes in a page's block stands in its test; ``pip install`` is left out.
"""

import os
import re
import signal
import socket
import subprocess
import time
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from pathlib import Path

import pytest

from cometmq import BlockingClient
from cometmq.admin.node import VIP_DISTANCE, lasting_port
from cometmq.message.model import Message
from cometmq.testing.cluster import SMALL_FILES, Cluster, ProcessCluster
from tests.architecture.rules import ROOT
from tests.transcript import environment_in

LIMIT_S = 120
SMALL = "".join(f" --set {key}={value}" for key, value in SMALL_FILES.items())


def blocks(page: str) -> list[tuple[str, str]]:
    """Language and text of each block of a page, in order, without its indent."""
    text = (ROOT / "docs" / page).read_text(encoding="utf-8")
    found = re.findall(r"^( *)```(\w+)\n(.*?)^ *```$", text, re.MULTILINE | re.DOTALL)
    return [
        (language, re.sub(f"^{indent}", "", block, flags=re.MULTILINE))
        for indent, language, block in found
    ]


def of_kind(page: str, *languages: str) -> list[str]:
    """The blocks of a page in some languages."""
    return [block for language, block in blocks(page) if language in languages]


@dataclass(slots=True)
class Shells:
    """Shells in a folder; servers that they leave in the background end with the test."""

    folder: Path
    sessions: list["subprocess.Popen[bytes]"] = field(default_factory=list)

    def run(self, script: str, **more: str) -> tuple[int, str]:
        """Run commands; return the exit code of the last one, and all that was printed."""
        done = subprocess.run(
            ["bash", "-c", script], cwd=self.folder, env=environment_in(self.folder) | more,
            stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True, timeout=LIMIT_S,
            check=False,
        )  # fmt: skip
        return done.returncode, done.stdout

    def start(self, script: str) -> "subprocess.Popen[bytes]":
        """Run commands that serve until the test ends."""
        log = self.folder / f"session-{len(self.sessions)}.log"
        with log.open("wb") as out:
            session = subprocess.Popen(
                ["bash", "-c", f"{script}\nwait"], cwd=self.folder,
                env=environment_in(self.folder), stdin=subprocess.DEVNULL, stdout=out,
                stderr=subprocess.STDOUT, start_new_session=True,
            )  # fmt: skip
        self.sessions.append(session)
        return session

    def printed(self) -> str:
        """What all sessions printed so far."""
        return "".join(path.read_text() for path in sorted(self.folder.glob("session-*.log")))

    def until(self, command: str, right: Callable[[str], bool] = lambda _: True) -> str:
        """Repeat a command until it succeeds and prints what is right; return that."""
        deadline = time.monotonic() + LIMIT_S
        while True:
            code, printed = self.run(command)
            if code == 0 and right(printed):
                return printed
            assert time.monotonic() < deadline, f"{command}: {printed}{self.printed()}"
            time.sleep(0.2)

    def end(self) -> None:
        """Kill what still runs."""
        for session in self.sessions:
            os.killpg(session.pid, signal.SIGKILL)
            session.wait(LIMIT_S)


@pytest.fixture
def shells(tmp_path: Path) -> Iterator[Shells]:
    made = Shells(tmp_path)
    yield made
    made.end()


def on_free_ports(text: str, ports: dict[str, str]) -> str:
    """A text with the test's ports in the place of the page's."""
    pattern = "|".join(rf"\b{port}\b" for port in ports)
    return re.sub(pattern, lambda found: ports[found[0]], text)


def server_ports(*written: str) -> dict[str, str]:
    """A free port for each port that a page names."""
    return {port: str(lasting_port(VIP_DISTANCE)) for port in written}


def server_of(session: "subprocess.Popen[bytes]", words: str) -> int:
    """The process id of the server of a session whose command has some words."""
    children = Path(f"/proc/{session.pid}/task/{session.pid}/children").read_text().split()
    commands = {int(pid): Path(f"/proc/{pid}/cmdline").read_text() for pid in children}
    [found] = [pid for pid, command in commands.items() if words in command.replace("\0", " ")]
    return found


def test_slaves(shells: Shells) -> None:
    pair, promotion, rejoin = of_kind("slaves.md", "sh")
    ports = server_ports("9876", "10911", "11911")
    health = f"cometmq cluster health -n 127.0.0.1:{ports['9876']} --broker orders --slaves 1"
    started = shells.start(on_free_ports(pair.replace(" &\n", f"{SMALL} &\n", 3), ports).replace(
        f"cometmq namesrv{SMALL}", f"cometmq namesrv -p {ports['9876']}"
    ))  # fmt: skip
    shells.until(f"{health} --exit-when-healthy --timeout 60")
    shells.until(f"cometmq topic create paid -n 127.0.0.1:{ports['9876']} --queues 1")
    shells.until(f"cometmq send paid A17 -n 127.0.0.1:{ports['9876']}")
    # An ASYNC_MASTER acknowledges before the slave has the message.
    shells.until(health, lambda table: " 0 bytes behind its master" in table)
    os.kill(server_of(started, f"listenPort={ports['10911']}"), signal.SIGKILL)
    printed = shells.until(on_free_ports(promotion, ports))
    assert re.search(r"^promoted .* name=orders role=ASYNC_MASTER", printed, re.MULTILINE)
    again = rejoin.replace(" &\n", f" --set listenPort=10911{SMALL} &\n")
    shells.start(on_free_ports(again, ports))
    shells.until(f"{health} --exit-when-healthy --timeout 60")
    shells.until(f"cometmq message browse paid -n 127.0.0.1:{ports['9876']}", lambda t: "A17" in t)


def test_name_servers(shells: Shells) -> None:
    """The third block is a call of mqadmin; tests/compat/commands.py has it, too."""
    start, drain, mqadmin = of_kind("name-servers.md", "sh")
    assert mqadmin.startswith("mqadmin ")
    ports = server_ports("9876", "9877", "10911")
    more = f" --set storePathRootDir=store --set listenPort=10911{SMALL}"
    started = start.replace(" --set storePathRootDir=store", more)
    assert started != start
    shells.start(on_free_ports(started, ports))
    both = f"'127.0.0.1:{ports['9876']};127.0.0.1:{ports['9877']}'"
    shells.until(f"cometmq cluster health -n {both} --broker broker-a --exit-when-healthy")
    for line in on_free_ports(drain, ports).splitlines():
        shells.until(line)


def test_accounts(shells: Shells) -> None:
    rules, command, account = of_kind("how-to/access-control.md", "yaml", "sh")
    ports = server_ports("9876", "10911")
    home = shells.folder / "rocketmq"
    (home / "conf").mkdir(parents=True)
    (home / "conf" / "plain_acl.yml").write_text(rules)
    (shells.folder / "tools.yml").write_text(account)
    (shells.folder / "tools.yml").chmod(0o600)
    own = f"--set namesrvAddr=127.0.0.1:9876 --set storePathRootDir=store{SMALL}"
    given = command.replace("/etc/rocketmq", str(home)).strip()
    assert given != command.strip()
    shells.start(
        on_free_ports(f"cometmq namesrv -p 9876 &\n{given} {own} --set listenPort=10911 &", ports)
    )
    asked = f"cometmq acl accounts -n 127.0.0.1:{ports['9876']}"
    printed = shells.until(f"{asked} --credentials tools.yml", lambda text: "shop-key" in text)
    assert "another-long-secret" not in printed
    assert shells.run(asked)[0] != 0


def test_tls(shells: Shells) -> None:
    [command] = of_kind("how-to/tls.md", "sh")
    settings = of_kind("how-to/tls.md", "properties")[0]
    [install, init] = command.splitlines()
    assert install.startswith("pip install ")
    code, printed = shells.run(init)
    assert code == 0, printed
    assert "tls.server.mode=enforcing" in printed
    where = str(shells.folder / "certificates")
    own = f"listenPort=0\nstorePathRootDir={shells.folder / 'store'}\n"
    (shells.folder / "broker.conf").write_text(settings.replace("/etc/rocketmq", where) + own)
    assert where in (shells.folder / "broker.conf").read_text()
    code, printed = shells.run("cometmq broker -c broker.conf --check")
    assert code == 0, printed


def test_erasing(shells: Shells) -> None:
    count, erase, program, compact = of_kind("how-to/erase-messages.md", "sh", "python")
    with ProcessCluster(shells.folder) as cluster, BlockingClient(cluster.namesrv) as client:
        for number in range(6):
            for topic in ("orders", "prices"):
                keys = (f"customer-{number % 2}",)
                client.send(Message(topic, b"a body of some length", keys=keys))
    (shells.folder / "erase.txt").write_text("customer-1\n")
    here = str(cluster.store)
    printed = []
    for line in (count + erase + compact).replace("/data/store", here).splitlines():
        code, text = shells.run(line)
        assert code == 0, (line, text)
        printed.append(text)
    assert "would erase 6 messages" in printed[0]
    assert Path(f"{here}-redacted").is_dir()
    assert "Nothing was changed" in printed[3]
    code, text = shells.run(f"cometmq store verify {here}")
    assert code == 0, text
    names: dict[str, object] = {}
    exec(program, names)
    assert callable(names["bill"])


def test_configuration(shells: Shells) -> None:
    serve, init, check, shown, taken = of_kind("how-to/configure.md", "console", "sh")
    folder = shells.folder
    code, printed = shells.run(
        init.replace("/etc/cometmq", "conf").replace("/var/lib/cometmq", "store")
    )
    assert code == 0, printed
    assert (folder / "conf" / "broker.conf").is_file()

    lines = ["# 1", "# 2", "brokrName=a", *["#"] * 5, "maxMessageSize=4M"]
    (folder / "broker.conf").write_text("\n".join(lines) + "\n")
    [command, ask] = re.findall(r"^\$ (.*)$", check, re.MULTILINE)
    _, printed = shells.run(f"{command}\n{ask}")
    assert printed == re.sub(r"^\$ .*\n", "", check, flags=re.MULTILINE)

    live = folder / "store" / "config" / "cometmq-settings.properties"
    live.parent.mkdir(parents=True)
    live.write_text("brokerPermission=4\n")
    (folder / "broker.conf").write_text("# 1\nfileReservedTime=48\n")
    [command] = re.findall(r"^\$ (.*)$", shown, re.MULTILINE)
    code, printed = shells.run(command, NAMESRV_ADDR="127.0.0.1:9876")
    assert code == 0, printed
    wanted = shown.partition("\n")[2].removesuffix("...\n")
    assert printed.startswith(wanted)
    live.unlink()

    [command] = re.findall(r"^\$ (.*)$", taken, re.MULTILINE)
    with socket.create_server(("127.0.0.1", 0)) as holder:
        port = holder.getsockname()[1]
        (folder / "broker.conf").write_text(f"listenPort={port}\n")
        code, printed = shells.run(command)
    assert code == 2
    form = re.sub(r"process \d+ \(.*?\)", "PROCESS", taken.splitlines()[1])
    assert form.replace("10911", str(port)) in re.sub(r"process \d+ \(.*?\)", "PROCESS", printed)

    ports = server_ports("9876", "10911")
    (folder / "broker.conf").write_text(f"listenPort={ports['10911']}\n")
    start = serve.strip().removeprefix("$ ")
    shells.start(on_free_ports(f"cometmq namesrv -p 9876 &\n{start}{SMALL} &", ports))
    shells.until(
        f"cometmq cluster health -n 127.0.0.1:{ports['9876']} --broker broker-a --exit-when-healthy"
    )


def test_the_page_in_the_browser(shells: Shells, cometmq_cluster: Cluster) -> None:
    [command] = of_kind("how-to/dashboard.md", "sh")
    install, serve = command.splitlines()
    assert install.startswith("pip install ")
    shells.start(serve.replace("127.0.0.1:9876", cometmq_cluster.namesrv) + " --port 0")
    deadline = time.monotonic() + LIMIT_S
    while "ready dashboard=http://127.0.0.1:" not in shells.printed():
        assert time.monotonic() < deadline, shells.printed()
        time.sleep(0.1)
