"""The plain core: each function and class in straightforward Python, the reference for compiled."""
