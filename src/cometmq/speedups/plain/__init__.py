"""The definition of the core: each function in straightforward Python."""
