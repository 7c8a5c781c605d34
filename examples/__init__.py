"""Small programs for docs/tutorial. Each runs against a broker and prints output/<name>.txt."""
