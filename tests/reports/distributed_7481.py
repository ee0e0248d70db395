# dask/distributed#7481: scaling down closed workers that had a running task while idle ones were
# there.
import time

from dask.distributed import Client
from retold import grow, shrink, workers

client = Client()
grow(client)
long = client.submit(lambda: time.sleep(12) or __import__("os").environ["DASK_WORKER_NAME"])
shrink(client)
assert not long.done()
assert workers(client) == {long.result()}
