"""
`timeout`: a deadline for whatever is awaited inside it.

Never `asyncio.wait_for`: before Python 3.12 it swallows a cancellation that comes in the moment in
which its awaitable is done (python/cpython#86296), and a task that was to end would go on for ever.
"""

from __future__ import annotations

import sys

if sys.version_info >= (3, 11):
    from asyncio import timeout
else:
    from async_timeout import timeout  # aiohttp brings it for these releases

__all__ = ["timeout"]
