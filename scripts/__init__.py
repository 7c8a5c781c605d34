"""What developers and continuous integration run."""
