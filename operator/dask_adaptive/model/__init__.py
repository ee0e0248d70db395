"""Declares the frozen values that all layers share. Standard library only; no side effects."""
