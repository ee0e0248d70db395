"""Loads that are taken off a scheduler: one module for each, and `reliefs` that applies them."""
