"""A base-data platform in PostgreSQL, and copies of it that Spark keeps: the databases of two other
platforms, and a Delta table. Processes are killed during the run; the copies end up equal.

    base.py       the base-data platform: changes and their messages in one transaction
    pipeline.py   Spark: the changes of a topic into every copy
    copies.py     locations of the copies, their rows, and the comparison
    running.py    the processes that are killed
    run.py        the run in order       __main__.py   with a broker, a database server and Spark
"""
