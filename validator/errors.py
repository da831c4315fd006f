"""RecipeError: the one expected failure, whose message tells the user what is wrong, where, and what to do. Beside it,
the reason of an operating system's error as it stands in a message."""


class RecipeError(Exception):
    """An expected failure, with a message for the user that says what is wrong, where, and what to do. `exit_code` is
    the exit code of a program that ends with it."""

    exit_code = 1


class ConfigurationError(RecipeError):
    """A configuration file that cannot be used. The exit code is 2, as for wrong options on the command line."""

    exit_code = 2


def os_reason(err: OSError) -> str:
    """Return why the operating system refused, as a clause for a message: `permission denied`."""
    return (err.strerror or str(err)).lower()
