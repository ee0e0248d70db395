"""
The `SchedulerLink`: the only code that talks to a Dask scheduler.

Schedulers run users' code, so their answers are untrusted data: nothing is unpickled here.
"""
