"""What the program writes for a user: whole or not at all, and nothing of theirs is lost."""
