"""The name server: which broker serves which topic, who is alive, and a small key-value table."""
