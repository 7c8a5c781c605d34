"""The dashboard: a web page that shows and changes a cluster, over the admin protocol only."""
