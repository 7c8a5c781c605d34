"""A whole cluster in one process under one seed: real name servers, brokers and clients, on an
event loop whose time jumps, with a simulated network and disks, and processes that end at any
moment.

    python -m cometmq.testing.sim 17            one seed; prints a report, or the violation
    python -m cometmq.testing.sim 0:20000       many seeds; a ledger can remember them
"""
