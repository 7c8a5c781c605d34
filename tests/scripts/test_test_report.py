"""The report counts what pytest wrote, and nothing bad passes as good."""

import os
import sys
from pathlib import Path

import pytest

from scripts import test_report as report

JUNIT = """<?xml version="1.0"?><testsuites><testsuite>
<testcase classname="tests.a" name="test_good"/>
<testcase classname="tests.a" name="test_bad"><failure message="x"/></testcase>
<testcase classname="tests.a" name="test_broken"><error message="x"/></testcase>
<testcase classname="tests.a" name="test_left_out[1]"><skipped message="x"/></testcase>
</testsuite></testsuites>"""


def test_junit_is_counted(tmp_path: Path) -> None:
    path = tmp_path / "a.xml"
    path.write_text(JUNIT, encoding="utf-8")
    summary = report.read_junit(path)
    assert summary.passed == 1
    assert summary.failed == ["tests.a::test_bad", "tests.a::test_broken"]
    assert summary.skipped == ["tests.a::test_left_out"]
    assert not summary.ok


def test_every_test_belongs_to_one_part() -> None:
    names = [part.name for part in report.PARTS]
    for marked in (
        [],
        ["compat"],
        ["spark", "store"],
        ["operation", "spark"],
        ["compat", "spark"],
        ["store"],
    ):
        homes = [
            name
            for name in names
            if eval(
                report.marker_expression(name),
                {"deep": False} | {other: other in marked for other in names},
            )
        ]
        assert homes == [next((name for name in names if name in marked), "unit")]


def test_deep_tests_belong_to_no_part() -> None:
    assert all("not deep" in report.marker_expression(part.name) for part in report.PARTS)


def test_the_run_has_all_parts() -> None:
    assert sorted(report.RUN_ORDER) == sorted(part.name for part in (*report.PARTS, report.PLAIN))


def test_the_closing_line() -> None:
    summary = report.Summary(passed=512)
    assert report.closing_line(summary, 612.333) == (
        "==== 512 passed, 0 failed, 0 skipped in 612.33s ===="
    )
    summary.add(report.Summary(failed=["a"], skipped=["b", "c"], problems=["part x has no tests"]))
    assert report.closing_line(summary, 1.0) == (
        "==== 512 passed, 1 failed, 2 skipped, 1 problems in 1.00s ===="
    )


@pytest.mark.parametrize(
    ("failed", "second", "unsteady"),
    [
        (["tests.a::test_x[java]", "tests.a::test_y[4.9.7-java5]"], report.Summary(passed=2), 2),
        # One whose end failed, too, is one test.
        (["tests.a::test_x[java]"] * 2, report.Summary(passed=1), 1),
        # Failed again, skipped, ended at its limit: none of these has passed.
        (["tests.a::test_x[java]"], report.Summary(failed=["tests.a::test_x[java]"]), 0),
        (["tests.a::test_x[java]"], report.Summary(passed=1, failed=["tests.a::test_x[java]"]), 0),
        (["tests.a::test_x[java]"], report.Summary(skipped=["tests.a::test_x"]), 0),
        (["tests.a::test_x[java]"], report.Summary(passed=1, problems=["ended"]), 0),
        (["tests.client.a::test_x[4.9.7-cometmq]"], report.Summary(passed=1), 1),
        (["tests.cluster.a::test_x[java]"], report.Summary(passed=1), 1),
        # One that may have lost a message, one that does the same each time, too many of them.
        (["tests.client.a::test_x", "tests.cluster.a::test_x[cometmq]"], None, 0),
        (["tests.core.a::test_x"], None, 0),
        (["tests.spark.test_standalone::test_x"], None, 0),
        ([f"tests.a::test_{number}[java]" for number in range(4)], None, 0),
        ([], None, 0),
    ],
)
def test_some_tests_have_a_second_run(
    monkeypatch: pytest.MonkeyPatch,
    failed: list[str],
    second: report.Summary | None,
    unsteady: int,
) -> None:
    runs: list[list[str]] = []

    def run_part(_part: report.Part, _extra: list[str], *, tests: list[str]) -> report.Summary:
        assert second is not None
        runs.append(tests)
        return second

    monkeypatch.setattr(report, "run_part", run_part)
    summary = report.Summary(passed=7, failed=list(failed))
    report.run_again(report.PARTS[0], summary)
    ids = [report.node_id(name) for name in dict.fromkeys(failed)]
    assert runs == ([] if second is None else [ids])
    assert (summary.passed, len(summary.unsteady)) == (7 + unsteady, unsteady)
    assert summary.failed == ([] if unsteady else failed)


def test_the_id_of_a_test() -> None:
    assert (
        report.node_id("tests.compat.test_a::test_x[java]")
        == "tests/compat/test_a.py::test_x[java]"
    )


def test_unsteady_tests_are_counted() -> None:
    summary = report.Summary(passed=2, unsteady=["a"])
    assert summary.ok
    assert "2 passed, 0 failed, 0 skipped, 1 unsteady in" in report.closing_line(summary, 1.0)


def test_nothing_passed_is_not_well() -> None:
    assert not report.Summary().ok
    assert report.Summary(passed=1).ok
    assert not report.Summary(passed=1, problems=["check types failed"]).ok


def test_only_listed_skips_are_allowed(tmp_path: Path) -> None:
    path = tmp_path / "allowed.txt"
    path.write_text("# head\n\ntests.a::test_x  # needs a namespace\n", encoding="utf-8")
    allowed = report.read_allowed_skips(path)
    assert allowed == {"tests.a::test_x"}
    assert report.forbidden_skips(["tests.a::test_x", "tests.a::test_y"], allowed) == [
        "tests.a::test_y"
    ]


def test_a_command_over_its_limit_is_ended() -> None:
    command = [sys.executable, "-c", "import time; time.sleep(60)"]
    assert report.run_limited(command, 0.2, dict(os.environ)) is None


@pytest.mark.parametrize("code", [0, 3])
def test_a_command_within_its_limit_gives_its_code(code: int) -> None:
    command = [sys.executable, "-c", f"raise SystemExit({code})"]
    assert report.run_limited(command, 60, dict(os.environ)) == code


def test_tests_that_lack_java_are_named(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    (tmp_path / "java").write_text("#!/bin/sh\n", encoding="utf-8")
    (tmp_path / "java").chmod(0o755)
    monkeypatch.setenv("PATH", str(tmp_path))
    monkeypatch.setattr(report, "tool", lambda _: str(tmp_path / "pytest"))
    collected = "#!/bin/sh\necho tests/compat/test_a.py::test_x\necho 1 test\n"
    (tmp_path / "pytest").write_text(collected, encoding="utf-8")
    (tmp_path / "pytest").chmod(0o755)
    summary = report.run_tests(["compat"], [])
    assert summary.skipped == ["tests/compat/test_a.py::test_x"]
    assert not summary.ok
    printed = capsys.readouterr().out
    assert "not run: tests/compat/test_a.py::test_x" in printed
    assert "missing javac, mvn" in printed
    assert "apt-get install -y maven openjdk-17-jdk-headless" in printed


def test_tests_that_lack_the_core_are_named(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    expressions: list[str] = []

    def run(command: list[str], _limit_s: float, _environment: dict[str, str]) -> int:
        expressions.append(command[command.index("-q") + 2])
        return 0

    monkeypatch.setenv("COMETMQ_PURE", "1")
    monkeypatch.setattr(report, "run_limited", run)
    monkeypatch.setattr(report, "REPORT_DIR", tmp_path)
    monkeypatch.setattr(report, "missing_java_tools", list)
    monkeypatch.setattr(report, "tool", lambda _: str(tmp_path / "pytest"))
    (tmp_path / "pytest").write_text("#!/bin/sh\necho tests/broker/test_a.py::test_x\n")
    (tmp_path / "pytest").chmod(0o755)
    summary = report.run_tests(["unit"], [])
    assert summary.skipped == ["tests/broker/test_a.py::test_x"]
    assert not summary.problems
    assert expressions[0].endswith(" and not compiled")
    assert "make core" in capsys.readouterr().out


def test_servers_that_run_as_nobody_come_to_their_files(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    seen: list[int] = []

    def run(_command: object, _limit_s: float, environment: dict[str, str]) -> int:
        seen.append(Path(environment["TMPDIR"]).stat().st_mode & 0o777)
        return 0

    monkeypatch.setattr(report, "run_limited", run)
    monkeypatch.setattr(report, "REPORT_DIR", tmp_path)
    report.run_part(report.PARTS[0], [])
    assert seen == [0o711]


def test_tests_of_the_core_run_again_with_plain_python(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    asked: list[tuple[bool, str]] = []

    def run(command: list[str], _limit_s: float, environment: dict[str, str]) -> int:
        is_plain = environment.get("COMETMQ_PURE") == "1"
        asked.append((is_plain, command[command.index("-q") + 2]))
        return 0

    monkeypatch.delenv("COMETMQ_PURE", raising=False)
    monkeypatch.setattr(report, "run_limited", run)
    monkeypatch.setattr(report, "REPORT_DIR", tmp_path)
    report.run_tests(["unit", "plain"], [])
    assert asked[0][0] is False
    assert asked[1][0] is True
    assert asked[1][1].startswith("core and not deep")


@pytest.mark.parametrize(("used", "said"), [(80, False), (87, False), (88, True), (100, True)])
def test_a_disk_that_is_too_full_for_brokers_is_told(used: int, said: bool) -> None:
    problems = report.lack_of_room(used << 30, (100 - used) << 30, "/somewhere")
    assert [problem[:26] for problem in problems] == ["the disk under /somewhere "] * said
