"""The name server: routes of topics, registered brokers, and small key-value tables."""
