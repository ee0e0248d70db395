"""
Pure decisions. The one entry is `plan.plan`.

No I/O, no clock, no randomness, no logging: the same input gives the same plan.
"""
