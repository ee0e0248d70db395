# dask/distributed#3141: a worker that came to the end of its lifetime dropped the task that it ran.
# env: {DASK_DISTRIBUTED__WORKER__LIFETIME__DURATION: 5s}
import time

from dask.distributed import Client

client = Client()
assert client.gather(client.map(lambda i: time.sleep(3) or i, range(6))) == list(range(6))
