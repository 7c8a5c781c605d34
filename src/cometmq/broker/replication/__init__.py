"""Roles of a broker: master, slave, and the change from one to the other."""
