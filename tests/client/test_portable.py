"""The client where Linux is not: without its modules and calls, on asyncio's own event loop.

No Windows or macOS is at hand. What they lack is taken away in a process of its own, which then
imports all that users of the client import, and sends and receives.
"""

import subprocess
import sys

from cometmq.testing.cluster import Cluster

ELSEWHERE = """
import asyncio, importlib, mmap, os, select, signal, socket, sys

ABSENT = set("fcntl grp pwd pty readline resource syslog termios tty uvloop".split())

class Elsewhere:
    def find_spec(self, name, path=None, target=None):
        if name.partition(".")[0] in ABSENT:
            raise ModuleNotFoundError(f"No module named {name!r}", name=name)

sys.meta_path.insert(0, Elsewhere())
for name in ABSENT:
    sys.modules.pop(name, None)
for module, names in (
    (os, "O_CLOEXEC O_DIRECTORY O_NOFOLLOW fchmod fdatasync fork getloadavg getuid geteuid killpg "
         "posix_fadvise pread preadv pwrite pwritev register_at_fork sched_getaffinity sched_yield "
         "sendfile setsid statvfs sysconf uname"),
    (signal, "SIGCHLD SIGHUP SIGKILL SIGPIPE SIGQUIT SIGUSR1 SIGUSR2 pthread_sigmask"),
    (socket, "MSG_DONTWAIT SO_REUSEPORT TCP_KEEPCNT TCP_KEEPIDLE TCP_KEEPINTVL "
             "TCP_NOTSENT_LOWAT TCP_USER_TIMEOUT recv_fds send_fds"),
    (mmap, "MADV_DONTNEED MADV_RANDOM MADV_SEQUENTIAL MADV_WILLNEED MAP_PRIVATE MAP_SHARED "
           "PROT_READ PROT_WRITE"),
):
    for name in names.split():
        if hasattr(module, name):
            delattr(module, name)

import cometmq

for name in cometmq.__all__:
    getattr(cometmq, name)
for name in "admin.api client.blocking faststream kombu otel outbox cli.main".split():
    importlib.import_module(f"cometmq.{name}")

namesrv = sys.argv[1]

async def main():
    async with cometmq.Client(namesrv) as client:
        await client.send("orders", b"1")
        async with client.subscribe("orders", group="g", start="first") as subscription:
            async for message in subscription:
                async with message.processing():
                    print(message.body, type(asyncio.get_running_loop()).__module__)
                break

asyncio.run(main())
with cometmq.BlockingClient(namesrv) as client:
    client.send("orders", b"2")
    with client.pull_consumer("orders", group="p", start="first") as consumer:
        found = []
        while len(found) < 2:
            found += consumer.poll()
    print(sorted(each.body for each in found))
"""


def test_the_client_needs_nothing_of_linux(cometmq_cluster: Cluster) -> None:
    done = subprocess.run(
        [sys.executable, "-c", ELSEWHERE, cometmq_cluster.namesrv],
        capture_output=True, text=True, timeout=120, check=False,
    )  # fmt: skip
    assert done.returncode == 0, done.stderr
    assert done.stdout == "b'1' asyncio.unix_events\n[b'1', b'2']\n"
