"""
The `SchedulerLink`: the only code that talks to a Dask scheduler.

Schedulers belong to users, so what they answer is data: nothing that they send is unpickled here.
"""
