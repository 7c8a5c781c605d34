"""Tests of reads over several tiers."""
