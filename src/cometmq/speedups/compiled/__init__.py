"""The compiled core: the names of ``plain`` in typed Cython, built by scripts/build_core.py."""
