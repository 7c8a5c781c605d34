"""Background work of a running store: flushes, checksums, retention, the scrub."""
