"""All findings of a file."""

# What a comment that suppresses findings begins with. Here, as a recipe without it does not import suppression.py.
MARK = "lmf-recipes:"
