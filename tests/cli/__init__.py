"""The command line: option by option in this process, whole commands against a real cluster."""
