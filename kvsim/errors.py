"""The one exception a user should ever see: a sentence that names the fix."""


class InputError(ValueError):
    """Bad input. The message is one clear sentence: what was wrong, where, and what would be right.

    The command line prints it without a traceback and exits with code 2.
    """
