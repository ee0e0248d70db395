"""Shares one budget among many clusters, as an AdaptiveBudget says. Pure."""
