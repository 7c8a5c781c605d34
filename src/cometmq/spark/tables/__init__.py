"""Tables that micro-batches are written to, each batch exactly once."""
