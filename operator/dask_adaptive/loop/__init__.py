"""
One pass over one cluster: observe → plan → act → report, over ports.

Knows neither Kubernetes nor a scheduler's RPC: `ports` declares both.
"""
