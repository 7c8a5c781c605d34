"""Rules about effects: who may read a clock, start a task, touch a file. Found in the syntax tree.

Names are followed through imports (`from os import fsync as f`), not through variables; a rule is a
fence against slips, not against ill will.
"""

import ast
from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from pathlib import Path

from tests.architecture.rules import parse


@dataclass(frozen=True, slots=True)
class Ban:
    """Calls that only some files may make.

    `calls` are full names; `methods` are attribute names on anything but the files layer, which
    goes by the name of `files`; `modules` may not even be imported. `allowed` and `folders` are
    paths inside the package; no folders means everywhere.
    """

    reason: str
    allowed: frozenset[str]
    calls: frozenset[str] = frozenset()
    methods: frozenset[str] = frozenset()
    modules: frozenset[str] = frozenset()
    folders: tuple[str, ...] = ()

    def covers(self, path: str) -> bool:
        """Whether the ban holds for a file, given by its path inside the package."""
        return path not in self.allowed and (not self.folders or path.startswith(self.folders))


CLOCK = Ban(
    reason="only core/clock.py reads clocks and sleeps",
    allowed=frozenset({"core/clock.py"}),
    calls=frozenset(
        {
            "asyncio.sleep",
            "datetime.datetime.now",
            "datetime.datetime.utcnow",
            "datetime.date.today",
        }
    ),
    modules=frozenset({"time"}),
)
TASKS = Ban(
    reason="only net/tasks.py starts tasks",
    allowed=frozenset({"net/tasks.py"}),
    calls=frozenset(
        {"asyncio.create_task", "asyncio.ensure_future", "asyncio.get_running_loop().create_task"}
    ),
)
DEVICE = Ban(
    reason="only store/files.py maps, writes and syncs by descriptor",
    # Files with keys get their mode as they are created, which only os.open can do. The lock of a
    # part of the ports is a descriptor that stays open until the process ends.
    allowed=frozenset({"store/files.py", "cli/contexts.py", "admin/node.py"}),
    calls=frozenset(
        {
            *("mmap.mmap", "os.open", "os.fsync", "os.fdatasync", "os.ftruncate", "os.truncate"),
            *("os.pread", "os.preadv", "os.pwrite", "os.pwritev", "os.posix_fallocate"),
        }
    ),
)
STORE_FILES = Ban(
    reason="in the store only store/files.py opens, renames and removes files",
    allowed=frozenset({"store/files.py"}),
    calls=frozenset({"open", "os.rename", "os.replace", "os.unlink", "os.remove", "shutil.rmtree"}),
    methods=frozenset({"read_bytes", "read_text", "write_bytes", "write_text", "unlink", "rename"}),
    folders=("store/",),
)
FOREVER_S = 60
BANS = (CLOCK, TASKS, DEVICE, STORE_FILES)


def imported_names(tree: ast.Module) -> dict[str, str]:
    """Local name -> full name, for every import of a module."""
    names: dict[str, str] = {}
    for node in ast.walk(tree):
        if isinstance(node, ast.Import):
            for alias in node.names:
                local = alias.asname or alias.name.partition(".")[0]
                names[local] = alias.name if alias.asname else local
        elif isinstance(node, ast.ImportFrom) and node.module and node.level == 0:
            for alias in node.names:
                names[alias.asname or alias.name] = f"{node.module}.{alias.name}"
    return names


def full_name(node: ast.expr, imports: dict[str, str]) -> str:
    """`os.fsync` for what a called expression names, as far as imports tell."""
    if isinstance(node, ast.Name):
        return imports.get(node.id, node.id)
    if isinstance(node, ast.Attribute):
        return f"{full_name(node.value, imports)}.{node.attr}"
    if isinstance(node, ast.Call):
        return f"{full_name(node.func, imports)}()"
    return "?"


def yields(tree: ast.Module, imports: dict[str, str]) -> set[ast.expr]:
    """The `asyncio.sleep` of every `asyncio.sleep(0)`, which gives the turn away, no more."""
    return {
        node.func
        for node in ast.walk(tree)
        if isinstance(node, ast.Call)
        and full_name(node.func, imports) == "asyncio.sleep"
        and [ast.unparse(argument) for argument in node.args] == ["0"]
    }


def names_method(node: ast.expr, ban: Ban, imports: dict[str, str]) -> bool:
    """Whether an expression names one of the ban's methods, on anything but the files layer."""
    if not isinstance(node, ast.Attribute) or node.attr not in ban.methods:
        return False
    receiver = full_name(node.value, imports).rpartition(".")[2]
    return receiver.strip("_") != "files"


def breaks(ban: Ban, tree: ast.Module) -> Iterator[tuple[int, str]]:
    """Lines of a tree that break a ban, with what they name."""
    imports = imported_names(tree)
    harmless = yields(tree, imports)
    for node in ast.walk(tree):
        if node in harmless:
            continue
        if isinstance(node, ast.Import | ast.ImportFrom):
            module = node.module if isinstance(node, ast.ImportFrom) else None
            named = [module] if module else [alias.name for alias in node.names]
            yield from ((node.lineno, f"import {name}") for name in named if name in ban.modules)
        elif isinstance(node, ast.Name | ast.Attribute) and isinstance(node.ctx, ast.Load):
            name = full_name(node, imports)
            if name in ban.calls or names_method(node, ban, imports):
                yield node.lineno, name


def banned_calls(package: Path, files: Iterable[Path], bans: Iterable[Ban] = BANS) -> list[str]:
    """Complaints about every banned call in the files of a package."""
    bans = tuple(bans)
    complaints = []
    for path in files:
        inside = path.relative_to(package).as_posix()
        held = [ban for ban in bans if ban.covers(inside)]
        tree = parse(path)
        complaints += [
            f"{inside}:{line}: {name}: {ban.reason}"
            for ban in held
            for line, name in breaks(ban, tree)
        ]
    return complaints


def lasts_for_ever(call: ast.Call) -> bool:
    """Whether a sleep stands for work without end: no test that passes ever waits a minute."""
    argument = call.args[0] if call.args else None
    seconds = argument.value if isinstance(argument, ast.Constant) else None
    return isinstance(seconds, int | float) and seconds >= FOREVER_S


def lone_sleeps(files: Iterable[Path]) -> list[str]:
    """Sleeps for luck: those outside a loop that looks whether the wait is over."""
    complaints = []
    for path in files:
        tree = parse(path)
        imports = imported_names(tree)
        harmless = yields(tree, imports)
        loops = (node for node in ast.walk(tree) if isinstance(node, ast.While | ast.For))
        polling = {inner for loop in loops for inner in ast.walk(loop)}
        complaints += [
            f"{path}:{node.lineno}: {full_name(node.func, imports)}"
            for node in ast.walk(tree)
            if isinstance(node, ast.Call)
            and full_name(node.func, imports) in {"asyncio.sleep", "time.sleep"}
            and node not in polling
            and node.func not in harmless
            and not lasts_for_ever(node)
        ]
    return complaints
