"""Replication: a master pushes the bytes of its log to slaves, which report what they have.

    master   log bytes -> Transfer ... Transfer -> heartbeat
    slave    report (its offset) ... report after each transfer, and every 5 s

The rule that everything else depends on: **a slave reports only bytes that it keeps, and a master
counts only reports that it can prove possible.** The bytes are copied from log to log unchanged.
"""
