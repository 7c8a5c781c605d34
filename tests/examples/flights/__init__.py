"""The flights, and what becomes of them."""
