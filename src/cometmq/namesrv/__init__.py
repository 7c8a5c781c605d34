"""The name server: routes of topics, live brokers, and a small key-value table."""
