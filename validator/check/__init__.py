"""All findings of a file, a folder or a commit: located, sorted, without those that a comment suppresses.

checking has the entries (`check_files`, `check_file`, `check_document`, `check_recipe`). This room knows files,
lines and columns; what is wrong with a run is known to the rules alone."""
