"""Replication: a master pushes the bytes of its log to slaves, which report the offset they have.

    master -> slave   transfer (log bytes) ... transfer ... heartbeat (empty transfer)
    slave -> master   report (offset) at first, when its log has grown, and every 5 s

The rule that everything else depends on: **a slave reports only bytes that it keeps, and a master
counts only reports that can be true.** The bytes are copied from log to log unchanged.
"""
