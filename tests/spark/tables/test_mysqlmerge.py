"""The SQL of a merge in MySQL: what is asked for and nothing else, and every name quoted.

What it does to rows is tested in test_mysql.py.
"""

from cometmq.spark.tables.merge import Merge
from cometmq.spark.tables.mysql import statements

NEW = "`_cometmq_new`"


def texts(merge: Merge, *columns: str) -> list[str]:
    return statements(merge, ("s", "Target"), "`stage`", columns, "X'07'")


def test_append() -> None:
    assert texts(Merge(), "a", "b`c%") == [
        f"INSERT INTO `s`.`Target` (`a`, `b``c%%`) SELECT {NEW}.`a`, {NEW}.`b``c%%` FROM "
        f"(SELECT `a`, `b``c%%` FROM `stage` WHERE `_cometmq_task` IN (X'07')) AS {NEW}"
    ]


def test_upsert_without_an_order() -> None:
    assert texts(Merge(("k",)), "k", "v") == [
        f"INSERT INTO `s`.`Target` (`k`, `v`) SELECT {NEW}.`k`, {NEW}.`v` FROM "
        f"(SELECT `k`, `v` FROM `stage` WHERE `_cometmq_task` IN (X'07')) AS {NEW} "
        "ON DUPLICATE KEY UPDATE `s`.`Target`.`v` = VALUES(`v`)"
    ]
    [only_keys] = texts(Merge(("k",)), "k")
    assert only_keys.endswith("ON DUPLICATE KEY UPDATE `s`.`Target`.`k` = `s`.`Target`.`k`")


def test_newest_and_deleted() -> None:
    newest = (
        "(SELECT `k`, `n`, `m`, `gone` FROM (SELECT `k`, `n`, `m`, `gone`, ROW_NUMBER() OVER "
        "(PARTITION BY `k` ORDER BY `n` DESC, `m` DESC) AS `_cometmq_rank` FROM `stage` WHERE "
        f"`_cometmq_task` IN (X'07')) AS r WHERE `_cometmq_rank` = 1) AS {NEW}"
    )
    newer = "((`s`.`Target`.`n`, `s`.`Target`.`m`) > (VALUES(`n`), VALUES(`m`)))"
    assert texts(Merge(("k",), ("n", "m"), "gone"), "k", "n", "m", "gone") == [
        f"DELETE t FROM {newest} STRAIGHT_JOIN `s`.`Target` AS t ON t.`k` = {NEW}.`k` "
        f"WHERE {NEW}.`gone` AND ((t.`n`, t.`m`) > ({NEW}.`n`, {NEW}.`m`)) IS NOT TRUE",
        f"INSERT INTO `s`.`Target` (`k`, `n`, `m`) SELECT {NEW}.`k`, {NEW}.`n`, {NEW}.`m` "
        f"FROM {newest} WHERE {NEW}.`gone` IS NOT TRUE ON DUPLICATE KEY UPDATE "
        f"`s`.`Target`.`m` = IF({newer}, `s`.`Target`.`m`, VALUES(`m`)), "
        f"`s`.`Target`.`n` = IF({newer}, `s`.`Target`.`n`, VALUES(`n`))",
    ]
