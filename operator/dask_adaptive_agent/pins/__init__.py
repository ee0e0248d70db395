"""Pins of code and of people, as leases."""
