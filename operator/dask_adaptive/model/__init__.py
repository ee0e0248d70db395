"""Frozen values that all layers share. Standard library only; nothing here does anything."""
