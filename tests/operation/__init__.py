"""Whole processes from outside: started, stopped, killed, out of disk."""
