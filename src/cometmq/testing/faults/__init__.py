"""Disks in memory that lose power and fail, and threads that run when they are told to."""
