"""Tables of a broker, and their files in its config directory."""
