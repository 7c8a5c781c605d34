"""The shop and its books."""
