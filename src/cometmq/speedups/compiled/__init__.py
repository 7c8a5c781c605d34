"""The compiled core: each function of ``plain`` in typed Cython, built by scripts/build_core.py."""
