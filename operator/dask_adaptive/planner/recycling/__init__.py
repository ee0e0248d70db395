"""Workers that are due are replaced by others: who, why, when, and how many at once."""
