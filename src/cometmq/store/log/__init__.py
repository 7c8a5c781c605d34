"""The commit log: its files, their flush to the device, their checksums and their retention."""
