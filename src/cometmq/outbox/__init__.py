"""Outbox: a change and its message are committed in one transaction of the application's database.

    application   BEGIN; change rows; add() a row to the outbox; COMMIT
    relay         take a page -> send it -> settle: delete or mark the rows that a broker stored

The invariant: **a row is settled only after its message is stored, and a row of an order key is
sent only after the previous one is stored, or in one batch with it.** After a crash rows may be
sent again, but none is lost. A row that is sent again has the same message id. The first copies of
one key's messages are in the order of its transactions.

    row.py         a row as a message, its stable message id, the page a relay works on
    table.py       the common part of the tables of all databases
    connections.py writes a row over the connection of SQLAlchemy, Django, asyncpg or psycopg
    sqlite.py      the table in SQLite        postgres.py   the table in PostgreSQL
    publishing.py  sends a page, plainly or as half messages with a checker that looks rows up
    relay.py       takes page after page
"""

from cometmq.outbox.postgres import PostgresOutbox as PostgresOutbox
from cometmq.outbox.relay import Relay as Relay
from cometmq.outbox.sqlite import SqliteOutbox as SqliteOutbox
