"""The clusters and fixtures that users test with."""
