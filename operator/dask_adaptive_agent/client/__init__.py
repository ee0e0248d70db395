"""For users' code: `pinned` and `want`."""
