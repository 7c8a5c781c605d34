"""Messages and their stored records: model, properties, ids, system flags, batches.

The commit log, pull responses and replication hold the record packed here: the same bytes, encoded
only once. Pure functions over bytes.
"""
