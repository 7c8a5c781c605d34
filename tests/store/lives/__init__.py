"""Lives of a store: random work, crashes and starts, checked against a simple model."""
