"""Messages and their stored records: model, properties, ids, system flags, batches.

A record is encoded once. The commit log, pull responses and replication hold the same bytes. The
modules here have pure functions over bytes, without I/O.
"""
