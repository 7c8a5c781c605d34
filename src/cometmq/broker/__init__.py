"""The broker: takes messages in, hands them out, and keeps the tables that both need."""
