"""Programs of examples/, and what they promise."""
