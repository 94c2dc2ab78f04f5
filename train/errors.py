"""The error that a user can mend: printed as one sentence, without a traceback."""

import difflib
from collections.abc import Iterable

# How a process ends; `train.__main__.main` says when. Python itself uses 1 and 2.
DONE, FAILED, REFUSED, DIVERGED, LOST = range(5)
AFTER_SIGNAL = 128


class UserError(Exception):
    """Something the user asked for cannot be done; the message says what to do instead."""


def nearest(name: str, valid: Iterable[str]) -> str:
    """A sentence that names the valid spellings, the likely one first.

    >>> nearest("tag-rmsprob", ["sgd", "tag-rmsprop"])
    'Did you mean tag-rmsprop? Valid: sgd, tag-rmsprop.'
    >>> nearest("zzz", ["sgd", "adam"])
    'Valid: sgd, adam.'
    """
    valid = list(valid)
    close = difflib.get_close_matches(name, valid, n=1)
    guess = f"Did you mean {close[0]}? " if close else ""
    return f"{guess}Valid: {', '.join(valid)}."
