"""The SQL of a merge: what is asked for and nothing else, and every name quoted.

What it does to rows is tested in test_postgres.py.
"""

import pytest
from psycopg import sql

from cometmq.core.errors import SettingsError
from cometmq.spark.tables.merge import Merge
from cometmq.spark.tables.postgres import statements

TARGET, STAGING = sql.Identifier("s", "Target"), sql.Identifier("stage")


def texts(merge: Merge, *columns: str) -> list[str]:
    return [each.as_string(None) for each in statements(merge, TARGET, STAGING, columns)]


def test_append() -> None:
    assert texts(Merge(), "a", 'b"c') == [
        'INSERT INTO "s"."Target" ("a", "b""c") SELECT "a", "b""c" FROM '
        '(SELECT "a", "b""c" FROM "stage" WHERE "_cometmq_task" = ANY(%s)) s'
    ]


def test_upsert_without_an_order() -> None:
    assert texts(Merge(("k",)), "k", "v") == [
        'INSERT INTO "s"."Target" AS t ("k", "v") SELECT "k", "v" FROM '
        '(SELECT "k", "v" FROM "stage" WHERE "_cometmq_task" = ANY(%s)) s '
        'ON CONFLICT ("k") DO UPDATE SET "v" = "excluded"."v" WHERE TRUE'
    ]
    assert texts(Merge(("k",)), "k")[0].endswith('ON CONFLICT ("k") DO NOTHING')


def test_newest_and_deleted() -> None:
    newest = (
        '(SELECT DISTINCT ON ("k") "k", "n", "gone" FROM "stage" WHERE "_cometmq_task" = ANY(%s) '
        'ORDER BY "k", "n" DESC NULLS LAST) s'
    )
    assert texts(Merge(("k",), ("n",), "gone"), "k", "n", "gone") == [
        f'DELETE FROM "s"."Target" t USING {newest} WHERE "t"."k" = "s"."k" '
        'AND (ROW("t"."n") > ROW("s"."n")) IS NOT TRUE AND s."gone"',
        f'INSERT INTO "s"."Target" AS t ("k", "n") SELECT "k", "n" FROM {newest} '
        'WHERE s."gone" IS NOT TRUE ON CONFLICT ("k") DO UPDATE SET "n" = "excluded"."n" '
        'WHERE (ROW("t"."n") > ROW("excluded"."n")) IS NOT TRUE',
    ]


@pytest.mark.parametrize(
    ("merge", "said"),
    [
        ({"newest_by": ("n",)}, "needs keys"),
        ({"deleted": "gone"}, "needs keys, and newest_by"),
        ({"deleted": "gone", "keys": ("k",)}, "needs keys, and newest_by"),
    ],
)
def test_what_does_not_go_together(merge: dict[str, tuple[str, ...]], said: str) -> None:
    with pytest.raises(SettingsError, match=said):
        Merge(**merge)  # type: ignore[arg-type]
