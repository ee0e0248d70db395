# dask/distributed#8522: a cluster that shrank with data on its workers lost some of them, scattered
# ones for good.
from dask.distributed import Client
from retold import grow, shrink

client = Client()
grow(client)
there = client.scatter([bytes([i]) * 100_000 for i in range(30)], hash=False)
shrink(client)
assert client.gather(there) == [bytes([i]) * 100_000 for i in range(30)]
