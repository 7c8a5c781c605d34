"""The commands that people type, one module for each noun."""
