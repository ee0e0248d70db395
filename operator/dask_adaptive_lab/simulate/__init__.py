"""
A policy against recorded work, in simulated time: what would have happened, with the very planner.

Reads traces and makes worlds of them; asks neither Kubernetes nor a scheduler. Deterministic.
"""
