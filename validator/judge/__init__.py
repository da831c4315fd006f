"""All findings of a file."""
