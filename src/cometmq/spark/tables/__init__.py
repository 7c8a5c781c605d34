"""Tables that micro-batches are written to, each batch once."""
