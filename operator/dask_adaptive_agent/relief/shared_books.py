"""
What the scheduler knows of callables that workers hold: numbers, sizes, and who has which.

No `distributed`, no pickling: bytes come in, numbers come out.
"""

from __future__ import annotations

from collections import OrderedDict
from typing import NamedTuple

#: Callables that the scheduler numbers; what was not used for longest is forgotten.
MOST_NUMBERED = 1000
MOST_NUMBERED_BYTES = 256_000_000
#: Callables seen once, by hash: who comes again is worth a number.
MOST_SEEN = 10_000

#: The most that one worker holds, as pickled.
MOST_HELD = 256
MOST_HELD_BYTES = 100_000_000


class Library:
    """
    A number for each callable that comes more than once, by its bytes.

    Bytes keep their hash, and equal ones are told by identity first, so that a look-up costs the
    same however long they are. No number is used twice.
    """

    def __init__(self) -> None:
        self._numbers: OrderedDict[bytes, int] = OrderedDict()
        self._seen: OrderedDict[int, None] = OrderedDict()
        self._next = 0
        self._bytes = 0
        #: References to callables that were sent, and those of them that brought the bytes along.
        self.uses = self.definitions = 0

    def find(self, pickled: bytes) -> int | None:
        """The number that it has, if any."""
        number = self._numbers.get(pickled)
        if number is not None:
            self._numbers.move_to_end(pickled)
        return number

    def number(self, pickled: bytes, *, comes_again: bool) -> int | None:
        """
        Args:
            pickled: A callable.
            comes_again: Whether it is known to; else it is once it does.
        """
        number = self.find(pickled)
        if number is not None:
            return number
        if not comes_again and not self._is_seen(hash(pickled)):
            return None
        if len(pickled) > MOST_HELD_BYTES // 2:
            return None
        number = self._numbers[pickled] = self._next = self._next + 1
        self._bytes += len(pickled)
        while len(self._numbers) > MOST_NUMBERED or self._bytes > MOST_NUMBERED_BYTES:
            old, _ = self._numbers.popitem(last=False)
            self._bytes -= len(old)
        return number

    def __len__(self) -> int:
        return len(self._numbers)

    def _is_seen(self, key: int) -> bool:
        if key in self._seen:
            return True
        self._seen[key] = None
        if len(self._seen) > MOST_SEEN:
            self._seen.popitem(last=False)
        return False


class Definition(NamedTuple):
    """What goes with a callable's bytes to a worker."""

    number: int
    #: Numbers that the worker gives up.
    outdated: tuple[int, ...]


class Held:
    """
    What one worker holds: decided here, told with the definitions, in the order of its stream.

    The least recently used go first, by number and by bytes.
    """

    def __init__(self, most_bytes: int = MOST_HELD_BYTES) -> None:
        self._sizes: OrderedDict[int, int] = OrderedDict()
        self._most_bytes = most_bytes
        self._bytes = 0
        self._outdated: list[int] = []

    def use(self, number: int) -> bool:
        """Whether the worker has it, from now on as the most recently used."""
        if number not in self._sizes:
            return False
        self._sizes.move_to_end(number)
        return True

    def define(self, number: int, size: int) -> Definition | None:
        """The worker will have it; None: it is too large for that."""
        if size > self._most_bytes:
            return None
        self._sizes[number] = size
        self._bytes += size
        while self._bytes > self._most_bytes or len(self._sizes) > MOST_HELD:
            old, freed = self._sizes.popitem(last=False)
            self._bytes -= freed
            self._outdated.append(old)
        outdated, self._outdated = tuple(self._outdated), []
        return Definition(number, outdated)

    def take_back(self, definitions: list[Definition]) -> None:
        """They were not sent after all."""
        for number, outdated in definitions:
            self._outdated += outdated
            size = self._sizes.pop(number, None)
            if size is not None:
                self._bytes -= size

    def forget(self) -> None:
        """The worker lacks something: whatever it has is given up, and defined anew when used."""
        self._outdated += self._sizes
        self._sizes.clear()
        self._bytes = 0

    def __len__(self) -> int:
        return len(self._sizes)

    @property
    def nbytes(self) -> int:
        return self._bytes
