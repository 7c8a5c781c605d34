"""A whole cluster in one process under one seed: real name servers, brokers and clients, on an
event loop whose time jumps, a network and disks in memory, and processes that end at any moment.

    python -m cometmq.testing.sim 17            one seed; says what it found and how it came
    python -m cometmq.testing.sim 0:20000       many, as a ledger remembers them
"""
