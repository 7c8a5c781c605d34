"""Tests of the Spark source; those that start a session carry the marker `spark`."""
