"""Loads the agent into a scheduler: by the preload, or live."""
