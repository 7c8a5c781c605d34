"""Findings: lines, order, and no more of one kind than can be read."""

from cometmq.store.tools.findings import EACH_LIMIT, Finding, Findings, Severity


def test_a_line_says_what_and_where() -> None:
    found = Finding(Severity.DAMAGE, "body", "log/0", 17, "it is wrong")
    assert found.line() == "damage: log/0 at offset 17: it is wrong"
    assert Finding(Severity.NOTE, "x", "root", -1, "so").line() == "note: root: so"


def test_damage_comes_first_then_by_place() -> None:
    findings = Findings()
    findings.note("n", "a", 1, "note")
    findings.damage("d", "b", 5, "second")
    findings.damage("d", "b", 2, "first")
    findings.damage("e", "b", -1, "whole file")
    other = Findings()
    other.extend(findings.all())
    assert [each.text for each in other.all()] == ["first", "second", "whole file", "note"]


def test_of_many_the_first_are_told_and_the_rest_is_counted() -> None:
    findings = Findings()
    for number in range(EACH_LIMIT + 50):
        findings.damage("d", "file", number, "wrong", 2)
    findings.damage("d", "other", 0, "wrong")
    found = findings.all()
    assert len(found) == EACH_LIMIT + 2
    (rest,) = [each for each in found if each.offset < 0]
    assert (rest.count, rest.path, rest.kind) == (100, "file", "d")
    assert "100 more" in rest.text
