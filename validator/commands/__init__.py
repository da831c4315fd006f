"""The commands, one file each; validator.cli imports the one that is asked for."""
