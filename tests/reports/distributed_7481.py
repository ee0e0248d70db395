# dask/distributed#7481: scaling down closed workers that had a running task while idle ones were
# there.
from dask.distributed import Client
from retold import grow, hold, shrink

client = Client()
grow(client)
go, long = hold(client, 1)
shrink(client)
assert not long[0].done()
go.set()
client.gather(long)
