"""Replication: a master pushes the bytes of its log to its slaves, and they say what they have.

    master   log bytes -> Transfer ... Transfer -> heartbeat
    slave    report (what it has) ... report after each transfer, and every 5 s

The rule that nothing else may break: **a slave reports only what it keeps, and a master counts only
a report that it can prove possible.** The bytes go from log to log unchanged.
"""
