"""Topics, and their registration with name servers."""
