"""The message and its stored record: model, properties, ids, system flags, batches.

The record packed here is what lies in the commit log, what a pull answers and what a replica
copies: the same bytes, never encoded twice. Pure functions over bytes.
"""
