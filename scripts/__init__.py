"""Programs for developers and continuous integration."""
