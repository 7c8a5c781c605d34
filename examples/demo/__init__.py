"""A typical job of a message queue on real data: one platform changes its tables, and others keep
equal copies, through crashes and failures that the run causes on purpose.

    script.py     the changes, generated from a seed
    tables.py     the tables in SQLite, and changes of their rows as messages
    base.py       the platform that changes the tables; its outbox and relay
    platform.py   a platform that keeps a copy
    pipeline.py   Spark's copy: a child process (follower.py)
    compare.py    the comparison of the copies, row by row
    progress.py   the numbers of a run    screen.py      what it prints
    run.py        the run in order        __main__.py    the command; folder.py: its files
"""
