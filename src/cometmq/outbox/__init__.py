"""Transactional outbox: a change and its message are committed in one database transaction.

    application   BEGIN; change rows; add() a row to the outbox; COMMIT
    relay         take a page of rows -> send it -> settle: delete or mark the rows that are stored

Invariants: **a row is settled only after a broker stored its message. A row with an order key is
sent only after the key's previous row is stored, or in one batch with it.** After a crash rows may
be sent again, with the same message id, but none is lost. The first copies of one key's messages
are in the order of its transactions.

    row.py         a row as a message, its stable message id, the page that a relay works on
    table.py       the common part of the tables of all databases
    connections.py inserts a row over a connection of SQLAlchemy, Django, asyncpg or psycopg
    sqlite.py      the table in SQLite        postgres.py   the table in PostgreSQL
    publishing.py  sends a page, as plain or as transactional messages
    relay.py       the loop that takes, sends and settles pages
"""

from cometmq.outbox.postgres import PostgresOutbox as PostgresOutbox
from cometmq.outbox.relay import Relay as Relay
from cometmq.outbox.sqlite import SqliteOutbox as SqliteOutbox
