"""What is told of what was found."""

from cometmq.store.tools.findings import EACH_LIMIT, Finding, Findings, Severity


def test_a_line_says_what_and_where() -> None:
    at = Finding(Severity.DAMAGE, "crc", "commitlog/0", 7, "body CRC differs")
    whole = Finding(Severity.NOTE, "lag", "index", -1, "behind")
    assert at.line() == "damage: commitlog/0 at offset 7: body CRC differs"
    assert whole.line() == "note: index: behind"


def test_findings_come_in_order_damage_first() -> None:
    found = Findings()
    found.note("lag", "b", -1, "n")
    found.damage("crc", "b", 9, "x")
    found.extend(
        [Finding(Severity.DAMAGE, "crc", "b", 3, "x"), Finding(Severity.DAMAGE, "gap", "a", 5, "y")]
    )
    assert [(each.path, each.offset) for each in found.all()] == [
        ("a", 5), ("b", 3), ("b", 9), ("b", -1),
    ]  # fmt: skip


def test_too_many_of_a_kind_are_counted() -> None:
    found = Findings()
    for offset in range(EACH_LIMIT + 5):
        found.damage("crc", "a", offset, "x", count=2)
    told = found.all()
    assert len(told) == EACH_LIMIT + 1
    assert sum(each.count for each in told) == 2 * (EACH_LIMIT + 5)
    assert (told[-1].count, told[-1].offset, told[-1].severity) == (10, -1, Severity.DAMAGE)
