"""This machine, as the tools of its drivers and the kernel's files describe it: accelerators and processes on them,
main memory, CPUs, disks, network interfaces, installed packages.

Knows the catalogue's device names, and nothing of recipes and runs. Reads, and changes nothing."""
