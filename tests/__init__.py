"""The tests: folders mirror `src/cometmq`; architecture, compat, golden, operation stand apart."""
