"""Small programs for docs/tutorial: each runs against a broker, and prints output/<name>.txt."""
