"""What an operator does with a store directory: look, verify, dump, snapshot, repair.

Nothing here is needed by a running broker. Reading never writes and never takes the lock, so it
also works on a read-only copy and on a directory that a Java broker wrote.
"""
