# dask/distributed#2106: a cancelled task went on and held its worker, and the next one had to wait.
import time

from dask.distributed import Client
from retold import until

client = Client()
long = client.submit(time.sleep, 300)
until(lambda: any(client.processing().values()))
time.sleep(1)
long.cancel()
began = time.monotonic()
assert client.submit(sum, [1, 2]).result() == 3
assert time.monotonic() - began < 240
