"""How often calls are looked at, once no more programs may be made and calls fit none of those that there are.

Such a call runs in eager mode, and looking for a program is what it costs beyond that. After a few in a row, the next
ones run in eager mode at once: 8 of them, then 16, and so on, until a call that is looked at fits again.
"""

from __future__ import annotations

_IN_A_ROW = 4
_MOST = 4096


class Patience:
    """Of one compiled function or step. row: how many calls in a row were looked at in vain."""

    __slots__ = ("_left", "row")

    def __init__(self) -> None:
        self.row = self._left = 0

    def waits(self) -> bool:
        """Whether a call is to run in eager mode at once; counts the call."""
        if not self._left:
            return False
        self._left -= 1
        return True

    def found(self) -> None:
        """A call that was looked at fitted a program."""
        self.row = 0

    def missed(self) -> None:
        """A call that was looked at fitted none, and none may be made for it."""
        self.row += 1
        if self.row >= _IN_A_ROW:
            self._left = min(8 << (self.row - _IN_A_ROW), _MOST)


class Walks:
    """When everything that code reaches is looked at again, past the limit, in the hope that a program fits then.

    A checkpoint that was loaded is such a case; a Python value that is another one in each call is none.
    """

    __slots__ = ("_fruitless", "_next")

    def __init__(self) -> None:
        self._fruitless = self._next = 0

    def may_be(self, call: int) -> bool:
        """Whether to look again in a call, by its number."""
        return self._fruitless < _IN_A_ROW or call >= self._next

    def was(self, call: int, *, fruitful: bool) -> None:
        """It was looked again."""
        self._fruitless = 0 if fruitful else self._fruitless + 1
        self._next = call + _MOST
