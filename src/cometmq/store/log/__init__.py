"""The commit log: its files and directories, their flush to the device, checksums and scans."""
