"""A base-data platform in PostgreSQL, and copies of it that Spark keeps: the databases of two other
platforms, and a Delta table. Things are killed on the way; the copies end equal.

    base.py       the base-data platform: changes and their messages in one transaction
    pipeline.py   Spark: the changes of a topic into every copy
    copies.py     where the copies are, their rows, and the comparison
    running.py    the processes round them, to be killed
    run.py        the run in order       __main__.py   with a broker, a database server and Spark
"""
