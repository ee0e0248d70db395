"""P2P shuffles: which run, which come, and where their outputs go."""
