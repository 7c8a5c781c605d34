"""The web page: its parts alone, and whole pages of a real broker."""
