"""The commands of `lmf-recipes`, one module each, whose click command is called `command`.

validator.cli imports the module of the command that is asked for, and no other. A command reads its options, asks
one room and prints the answer. Shared by several commands: options, check_files (check without click), preflight."""
