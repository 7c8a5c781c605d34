"""The web page: what a cluster does now, and changes to it, over the admin protocol only."""
