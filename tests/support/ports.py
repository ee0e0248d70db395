"""Ports for servers that are started a moment later, maybe by another process."""

from __future__ import annotations

import itertools
import os
import socket
from contextlib import ExitStack, suppress

# Below those that the kernel gives to outgoing connections (from 32,768 on) and Kubernetes to
# services (from 30,000 on): a connection made in between would hold the port.
_FIRST, _END = 20_000, 30_000
# Tests run side by side: each process begins somewhere else, and takes no port twice.
_from_here = itertools.count(os.getpid() % 100 * 100)


def free_port(in_a_row: int = 1) -> int:
    """The first of so many free ports in a row."""
    while True:
        taken = [next(_from_here) for _ in range(in_a_row)]
        first = _FIRST + taken[0] % (_END - _FIRST - in_a_row)
        with ExitStack() as stack, suppress(OSError):
            for port in range(first, first + in_a_row):
                stack.enter_context(socket.socket()).bind(("127.0.0.1", port))
            return first
