"""Tables to which micro-batches are written, each batch exactly once."""
