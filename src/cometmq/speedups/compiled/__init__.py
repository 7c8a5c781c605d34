"""The compiled core: the functions of ``plain`` in typed Cython, built by scripts/build_core.py."""
