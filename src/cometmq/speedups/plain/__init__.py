"""The definition of the core: each function in plain Python, without tricks."""
