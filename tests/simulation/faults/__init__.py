"""Disks that fail and lose power, and threads that run on command."""
