"""RecipeError: the one expected failure, whose message tells the user what is wrong, where, and what to do."""


class RecipeError(Exception):
    """An expected failure with a message for the user: what, where, what to do."""
