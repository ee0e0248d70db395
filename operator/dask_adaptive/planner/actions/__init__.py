"""Brings each group to its number: safely, whatever upstream is doing."""
