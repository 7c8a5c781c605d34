"""Runs all checks and tests of `make test` and sums them up in one closing line.

First the checks (ruff, format, mypy, import contracts, documentation), then pytest in parts, each
in its own process group with a time limit. With --coverage, branch coverage over all parts is
measured too, which makes Python half as slow again. A failed check or part does not stop the rest,
so one run shows all failures.

The closing line has pytest's shape: `==== 512 passed, 0 failed, 0 skipped in 612.33s ====`, with
other problems between `skipped` and `in`. The exit code is 0 only if every check and test passed,
every skip is listed in `tests/allowed_skips.txt`, and coverage, if measured, reaches
COVERAGE_MIN_PERCENT.

A failed test runs a second time if it depends on how fast this machine is, or if it is against a
Java broker, which shows some things later than it answers. If it passes then, it is named as
UNSTEADY. Tests whose failure may be a lost message, and tests that do the same in every run, have
no second run (ONE_RUN): a fault that shows seldom must stop a run.

Environment: COMETMQ_TEST_TIME_FACTOR multiplies the time limits (slow machines).
"""

import argparse
import os
import shutil
import signal
import subprocess
import sys
import tempfile
import time
import xml.etree.ElementTree as ElementTree
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field
from pathlib import Path

ROOT = Path(__file__).resolve().parent.parent
REPORT_DIR = ROOT / "build" / "test-reports"
ALLOWED_SKIPS = ROOT / "tests" / "allowed_skips.txt"
COVERAGE_MIN_PERCENT = 90
KILL_GRACE_S = 15
# More failures than this have a cause: none has a second run.
SECOND_RUNS_MAX = 3
# Where tests look for lost messages, or do the same in every run.
ONE_RUN = tuple(
    f"tests.{folder}."
    for folder in (
        *("store", "simulation", "cluster", "replication", "hostile", "operation", "outbox"),
        *("core", "message", "protocol", "filter", "acl", "speedups", "golden", "architecture"),
        *("spark.test_standalone", "spark.test_killed_stream", "spark.tiers", "spark.jobs"),
    )
)
# The brokers in the names of tests that run against Apache's.
JAVA_BROKERS = frozenset(("java", "java5"))
# Brokers refuse sends from 90 % on, and tests use a few gigabytes.
DISK_FULL_PERCENT = 88


@dataclass(frozen=True, slots=True)
class Part:
    """A share of the tests that runs as one pytest call: those with its marker, or for unit those
    without a marker.

    Workers take whole files, those with most tests first. If these are not the slowest,
    ``in_order`` makes them take files in the order of collection.
    """

    name: str
    limit_s: int
    workers: int
    in_order: bool = False


# A test with two of the markers belongs to the first of them in this order. So compat comes after
# the parts whose tests with Java peers need more than the peers.
PARTS = (
    Part("cluster", 25 * 60, 0),
    Part("spark", 25 * 60, 2, in_order=True),
    Part("compat", 45 * 60, 0),
    Part("operation", 35 * 60, 0),
    Part("store", 20 * 60, 2),
    Part("unit", 30 * 60, 2),
)
# Repeats the tests of code that runs on the compiled core, with plain Python.
PLAIN = Part("plain", 15 * 60, 2)
# The fastest parts first: most mistakes show there.
RUN_ORDER = ("unit", "plain", "store", "cluster", "compat", "spark", "operation")

CHECKS: dict[str, Sequence[str]] = {
    "ruff": ("ruff", "check", "."),
    "format": ("ruff", "format", "--check", "."),
    "types": ("mypy",),
    "imports": ("lint-imports", "--no-cache"),
    "spelling": ("codespell",),
    "docs": ("zensical", "build", "--strict"),
}


@dataclass(slots=True)
class Summary:
    """The totals of a run. `unsteady` are those of the passed tests that needed a second run;
    `problems` are failures that do not belong to a single test."""

    passed: int = 0
    failed: list[str] = field(default_factory=list)
    unsteady: list[str] = field(default_factory=list)
    skipped: list[str] = field(default_factory=list)
    problems: list[str] = field(default_factory=list)

    def add(self, other: "Summary") -> None:
        """Add the counts and lists of `other`."""
        self.passed += other.passed
        self.failed += other.failed
        self.unsteady += other.unsteady
        self.skipped += other.skipped
        self.problems += other.problems

    @property
    def ok(self) -> bool:
        """True if nothing failed and something passed."""
        return not self.failed and not self.problems and self.passed > 0


def marker_expression(part_name: str) -> str:
    """Return the pytest `-m` expression of a part: its own marker and none of the parts before it.
    The plain part repeats tests of other parts."""
    if part_name == PLAIN.name:
        return "core and not deep and not compiled"
    earlier: list[str] = ["deep"]
    for part in PARTS:
        if part.name == part_name:
            break
        earlier.append(part.name)
    negated = [f"not {name}" for name in earlier]
    return " and ".join(negated if part_name == "unit" else [part_name, *negated])


def read_junit(path: Path) -> Summary:
    """Count the results in one junit file. A name is `package.module::test`, that of a skip
    without its parameters."""
    summary = Summary()
    for case in ElementTree.parse(path).getroot().iter("testcase"):
        name = "::".join(filter(None, (case.get("classname"), case.get("name"))))
        kinds = {child.tag for child in case}
        if kinds & {"failure", "error"}:
            summary.failed.append(name)
        elif "skipped" in kinds:
            summary.skipped.append(name.partition("[")[0])
        else:
            summary.passed += 1
    return summary


def read_allowed_skips(path: Path) -> set[str]:
    """Return the names in the list: one per line, with a reason after `#`."""
    lines = path.read_text(encoding="utf-8").splitlines()
    return {name for line in lines if (name := line.partition("#")[0].strip())}


def closing_line(summary: Summary, seconds: float) -> str:
    """Return the line that sums up the run."""
    counts = [
        f"{summary.passed} passed",
        f"{len(summary.failed)} failed",
        f"{len(summary.skipped)} skipped",
    ]
    if summary.unsteady:
        counts.append(f"{len(summary.unsteady)} unsteady")
    if summary.problems:
        counts.append(f"{len(summary.problems)} problems")
    return f"==== {', '.join(counts)} in {seconds:.2f}s ===="


def say(text: str) -> None:
    """Print at once, because child processes write to the same stream."""
    print(text, flush=True)


def tool(name: str) -> str:
    """Return the path of a tool installed beside this interpreter."""
    return str(Path(sys.executable).parent / name)


def run_checks() -> Summary:
    """Run every static check. Each one that fails is a problem."""
    summary = Summary()
    for name, (program, *arguments) in CHECKS.items():
        say(f"---- check: {name}")
        environment = os.environ | {"NO_MKDOCS_2_WARNING": "true"}
        done = subprocess.run([tool(program), *arguments], cwd=ROOT, env=environment, check=False)
        if done.returncode != 0:
            summary.problems.append(f"check {name} failed")
    return summary


def run_limited(command: Sequence[str], limit_s: float, environment: dict[str, str]) -> int | None:
    """Run a command in its own process group. Return None if it was ended at its limit."""
    process = subprocess.Popen(
        command, cwd=ROOT, env=environment, stdin=subprocess.DEVNULL, start_new_session=True
    )
    try:
        return process.wait(limit_s)
    except subprocess.TimeoutExpired:
        return None
    finally:
        if process.poll() is None:
            end_group(process)


def end_group(process: subprocess.Popen[bytes]) -> None:
    """End the process group: with SIGTERM, then with SIGKILL."""
    os.killpg(process.pid, signal.SIGTERM)
    try:
        process.wait(KILL_GRACE_S)
    except subprocess.TimeoutExpired:
        os.killpg(process.pid, signal.SIGKILL)
        process.wait()


def has_second_run(name: str) -> bool:
    """Decide whether a failed test runs again: the broker in its name is Apache's, or it is in none
    of the folders with one run.
    """
    test, _, parameters = name.rstrip("]").partition("[")
    against_java = not JAVA_BROKERS.isdisjoint(parameters.split("-"))
    return against_java or not test.replace("::", ".").startswith(ONE_RUN)


def node_id(name: str) -> str:
    """Return pytest's id of a test from its name in a junit file."""
    module, _, test = name.partition("::")
    return f"{module.replace('.', '/')}.py::{test}"


def run_again(part: Part, summary: Summary) -> None:
    """Run the failed tests of a part a second time. They become unsteady if all of them pass.

    Nothing runs again if there are too many of them, or if one has no second run.
    """
    # A test whose end fails too is there twice.
    failed = list(dict.fromkeys(summary.failed))
    if not failed or len(failed) > SECOND_RUNS_MAX or not all(map(has_second_run, failed)):
        return
    say(f"---- tests: second run of {', '.join(failed)}")
    again = run_part(
        Part(f"{part.name}-again", part.limit_s, 0), [], tests=[node_id(name) for name in failed]
    )
    if again.passed == len(failed) and not again.failed and not again.problems:
        summary.passed += len(failed)
        summary.unsteady, summary.failed = failed, []


def run_part(
    part: Part,
    extra: Sequence[str],
    *,
    without: Iterable[str] = (),
    coverage: bool = False,
    tests: Sequence[str] = (),
) -> Summary:
    """Run one part of the tests, ``without`` those that have one of these markers, and read its
    counts. ``tests``, if there are any, are run instead, by their ids."""
    report = REPORT_DIR / f"{part.name}.xml"
    report.unlink(missing_ok=True)
    limit_s = part.limit_s * float(os.environ.get("COMETMQ_TEST_TIME_FACTOR", "1"))
    say(f"---- tests: {part.name} (at most {limit_s:.0f} s)")
    command = [tool("coverage"), "run", "-m", "pytest"] if coverage else [tool("pytest")]
    command += ["-q"]
    command += tests or ["-m", " and not ".join([marker_expression(part.name), *without])]
    command += [f"--junitxml={report}", "--durations=5", *extra]
    if part.workers:
        command += ["-n", str(part.workers), "--dist", "loadfile"]
        command += ["--no-loadscope-reorder"] * part.in_order
    # Removes the files that tests and killed processes leave.
    with tempfile.TemporaryDirectory(prefix="cmq-", ignore_cleanup_errors=True) as directory:
        # Root's PostgreSQL runs as the user nobody, which must be able to enter.
        os.chmod(directory, 0o711)
        environment = os.environ | {
            "COVERAGE_FILE": str(REPORT_DIR / "coverage"),
            "TMPDIR": directory,
        }
        if part is PLAIN:
            environment["COMETMQ_PURE"] = "1"
        code = run_limited(command, limit_s, environment)
    summary = read_junit(report) if report.exists() else Summary()
    if code is None:
        summary.problems.append(f"part {part.name} was ended after {limit_s:.0f} s")
    elif code == 5:
        summary.problems.append(f"part {part.name} has no tests")
    elif code != 0 and not summary.failed:
        summary.problems.append(f"part {part.name}: pytest ended with {code}")
    return summary


def lack_of_room(used_bytes: int, free_bytes: int, where: str) -> list[str]:
    """Return a problem if the disk is too full for brokers."""
    percent = 100 * used_bytes / (used_bytes + free_bytes)
    if percent < DISK_FULL_PERCENT:
        return []
    return [
        f"the disk under {where} is {percent:.1f} % full ({free_bytes >> 20} MiB free), and "
        f"brokers refuse sends from 90 % on: free some, so that it is under {DISK_FULL_PERCENT} %"
    ]


def missing_java_tools() -> list[str]:
    """Return the tools for the tests with Java peers that the machine lacks."""
    return [name for name in ("java", "javac", "mvn") if shutil.which(name) is None]


def has_core() -> bool:
    """Return whether the compiled core was built."""
    command = [sys.executable, "-c", "from cometmq.speedups import CORE; print(CORE)"]
    done = subprocess.run(command, cwd=ROOT, capture_output=True, text=True, check=True)
    return done.stdout.strip() == "compiled"


def name_tests_not_run(marker: str, reason: str, remedy: str) -> Summary:
    """Count the tests with a marker that cannot run as skipped, by name."""
    command = [tool("pytest"), "--collect-only", "-q", "-m", f"{marker} and not deep"]
    done = subprocess.run(command, cwd=ROOT, capture_output=True, text=True, check=False)
    names = [line for line in done.stdout.splitlines() if "::" in line]
    for name in names:
        say(f"not run: {name}")
    say(f"---- tests: {marker} NOT RUN: {reason}")
    say(f"     get it: {remedy}")
    return Summary(skipped=names)


def forbidden_skips(skipped: Iterable[str], allowed: set[str]) -> list[str]:
    """Return the skips that are not allowed, each once, in order."""
    return sorted(set(skipped) - allowed)


def measure_coverage() -> Summary:
    """Combine the coverage data of all processes and compare it with the limit."""
    environment = os.environ | {"COVERAGE_FILE": str(REPORT_DIR / "coverage")}
    say("---- coverage")
    for arguments in (
        ["combine", "--quiet"],
        ["report", "--sort=cover", f"--fail-under={COVERAGE_MIN_PERCENT}"],
    ):
        done = subprocess.run(
            [tool("coverage"), *arguments], cwd=ROOT, env=environment, check=False
        )
        if done.returncode != 0:
            return Summary(problems=[f"branch coverage under {COVERAGE_MIN_PERCENT} %"])
    return Summary()


def run_tests(
    part_names: Sequence[str], extra: Sequence[str], *, coverage: bool = False
) -> Summary:
    """Run the named parts in order and check their skips."""
    summary = Summary()
    not_run = Summary()
    parts = {part.name: part for part in (*PARTS, PLAIN)}
    without: list[str] = []
    if missing := missing_java_tools():
        without.append("compat")
        if "compat" in part_names:
            remedy = "apt-get install -y maven openjdk-17-jdk-headless"
            not_run.add(name_tests_not_run("compat", f"missing {', '.join(missing)}", remedy))
    if not has_core():
        without.append("compiled")
        if "unit" in part_names:
            reason, remedy = "the compiled core is not built", "make core says what it needs"
            not_run.add(name_tests_not_run("compiled", reason, remedy))
    for name in part_names:
        if name not in without:
            found = run_part(parts[name], extra, without=without, coverage=coverage)
            run_again(parts[name], found)
            summary.add(found)
    for name in forbidden_skips(summary.skipped, read_allowed_skips(ALLOWED_SKIPS)):
        summary.problems.append(f"skipped, but not in tests/allowed_skips.txt: {name}")
    summary.add(not_run)
    return summary


def main(arguments: Sequence[str] | None = None) -> int:
    """Run the checks and tests. Return the exit code: 0 if all is well."""
    parser = argparse.ArgumentParser(description="Run CometMQ's checks and tests.")
    parser.add_argument("--part", action="append", choices=RUN_ORDER, help="only this part")
    parser.add_argument("--coverage", action="store_true", help="measure branch coverage, too")
    parser.add_argument("pytest_arguments", nargs="*", help="after --, for pytest")
    options = parser.parse_args(arguments)
    started = time.monotonic()
    shutil.rmtree(REPORT_DIR, ignore_errors=True)
    REPORT_DIR.mkdir(parents=True)
    where = tempfile.gettempdir()
    disk = shutil.disk_usage(where)
    summary = Summary(problems=lack_of_room(disk.used, disk.free, where))
    if not summary.problems:
        if options.part is None:
            summary.add(run_checks())
        names, extra = options.part or RUN_ORDER, options.pytest_arguments
        summary.add(run_tests(names, extra, coverage=options.coverage))
        if options.part is None and options.coverage:
            summary.add(measure_coverage())
    for name in summary.failed:
        say(f"FAILED {name}")
    for name in summary.unsteady:
        say(f"UNSTEADY {name}: failed, and passed in a second run")
    for problem in summary.problems:
        say(f"PROBLEM {problem}")
    say(closing_line(summary, time.monotonic() - started))
    return 0 if summary.ok else 1


if __name__ == "__main__":
    sys.exit(main())
