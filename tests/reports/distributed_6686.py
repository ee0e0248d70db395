# dask/distributed#6686: `scatter` at zero workers brought none, and timed out.
from dask.distributed import Client
from retold import until

client = Client()
until(lambda: not client.nthreads())
there = client.scatter(list(range(1000)), hash=False, timeout=240)
assert client.submit(sum, there).result() == 499_500
