"""Simulation of clusters and stores under a seed: the real code, on a simulated clock, network and
disks, with processes that end at any moment.

    python -m tests.simulation 17                     one cluster; prints a report, or the violation
    python -m tests.simulation 0:20000                many seeds; --state remembers the outcomes
    python -m tests.simulation.store 0:1000           one machine without a network: a store

``faults`` has the disk, its faults and the threads, which both simulations share; ``cluster`` has
name servers, brokers and clients; ``store`` has the store of one broker and its model.
"""
