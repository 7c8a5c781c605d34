"""Services that use CometMQ, one program for each recipe of docs/how-to/services.md."""
