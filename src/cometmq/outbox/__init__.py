"""The outbox: a change and its message are one transaction of the application's database.

    application   BEGIN; change rows; add() a row to the outbox; COMMIT
    relay         take a page -> send it -> settle: delete or mark what a broker has stored

The rule that nothing else may break: **a row is settled only after its message is stored, and a row
of an order key is sent only after the one before it is.** So a crash anywhere sends again and loses
nothing, what is sent again has the same message id, and the first copies of one key's messages are
in the order of its transactions.

    row.py            a row as a message, its lasting message id, the page a relay works on
    sqlite.py         the table in SQLite        postgres.py   the table in PostgreSQL
    publishing.py     a page to its queues       relay.py      pages, one after the other, for ever
    transactional.py  rows as half messages, and the checker that looks rows up
"""

from cometmq.outbox.postgres import PostgresOutbox as PostgresOutbox
from cometmq.outbox.relay import Relay as Relay
from cometmq.outbox.sqlite import SqliteOutbox as SqliteOutbox
