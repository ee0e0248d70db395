"""One budget for many clusters: what an AdaptiveBudget says, and how it is shared. Pure."""
