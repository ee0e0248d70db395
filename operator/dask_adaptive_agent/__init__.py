"""
Code that runs inside Dask schedulers and workers.

Imports the standard library and `distributed` only, in Python 3.9 syntax, so that it runs in any
image that runs Dask. Importing this package must never fail and never have side effects.
"""

__version__ = "0.1.0"
