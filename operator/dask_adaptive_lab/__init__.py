"""
Tries policies out before they are applied: with a script on this machine, or against recorded work
in simulated time. The operator never imports it, and its image does not hold it.
"""
