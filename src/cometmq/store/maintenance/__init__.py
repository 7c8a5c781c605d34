"""What a store does by itself while it runs: flushes, checksums, retention, the scrub."""
