"""Computes the number of workers of each group: from demand through one stage per rule."""
