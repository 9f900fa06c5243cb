"""The exception tree. Every message says what was expected, what came, and what to do; none holds a raw symbol.

SeqveilError
├── InputError (ValueError)      what the caller passed cannot be used
│   ├── UnknownSymbol            a value outside the alphabet
│   ├── ModelError               a model that is not one, or does not fit the data
│   └── DataError                a file or frame that cannot be read as a stream
├── BudgetSpent                  the budget is gone and the policy says "error"
└── GuaranteeError               a kernel failed its own check; nothing was released
"""


class SeqveilError(Exception):
    """Base of everything seqveil raises on purpose."""


class InputError(SeqveilError, ValueError):
    """What the caller passed cannot be used as it is."""


class UnknownSymbol(InputError):
    """A value outside the alphabet. The message gives its position, never the value."""

    position: int | None = None


class ModelError(InputError):
    """A model that is malformed, or that belongs to another alphabet."""


class DataError(InputError):
    """A file or frame that cannot be read as streams of (user, value)."""


class BudgetSpent(SeqveilError):
    """The privacy budget is gone and the policy says to raise."""


class GuaranteeError(SeqveilError):
    """A kernel failed the check of its own guarantee; nothing was released."""
