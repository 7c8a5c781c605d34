"""The demo's parts by themselves, and the whole of it."""
