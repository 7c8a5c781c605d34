"""Tools for operators on a store directory: inspect, verify, dump, snapshot, repair.

A running broker needs none of them. Reading never writes and never takes the lock, so it also works
on a read-only copy and on a directory that a Java broker wrote.
"""
