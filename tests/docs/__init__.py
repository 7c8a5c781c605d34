"""The documentation: its navigation, its links, its commands."""
