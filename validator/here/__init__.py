"""This machine: its accelerators by what their drivers' programs print, its main memory, its free disk. No torch."""
