"""Tests of the disks that fail and the threads that wait."""
