"""Ready-made pipelines. Each is a function of a session and its options."""
