"""The work that a scheduler has: how much of it, and which workers can do it."""
