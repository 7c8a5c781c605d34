"""One machine without a network: a store through crashes and starts, checked against a model."""
