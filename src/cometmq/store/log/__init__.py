"""The commit log: its files, their sync to the device, their checksums and their end of life."""
