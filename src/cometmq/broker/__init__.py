"""The broker: stores messages, delivers them, and keeps the tables for both."""
