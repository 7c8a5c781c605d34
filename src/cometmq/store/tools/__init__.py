"""Tools for operators on a store directory: inspect, verify, dump, snapshot, repair, erase.

A running broker uses only sums.py, as a child process. Reading a store never writes to it and never
takes its lock, so it also works on a read-only copy and on a directory that a Java broker wrote.
"""
