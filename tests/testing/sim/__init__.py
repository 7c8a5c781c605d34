"""Tests of the simulation itself, and the seeds that CI runs."""
