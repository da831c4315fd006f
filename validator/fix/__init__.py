"""Remedies as edits of a recipe's text: tried, judged again, and taken back where they are not exact."""
