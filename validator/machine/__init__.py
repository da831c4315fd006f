"""This machine, as the tools of its drivers and the kernel's files describe it: accelerators and processes on them,
main memory, CPUs, disks, network interfaces, installed packages. The modules know the device names of the catalogue,
but nothing about recipes and runs. They only read, and change nothing."""
