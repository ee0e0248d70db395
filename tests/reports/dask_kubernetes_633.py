# dask/dask-kubernetes#633: near the end of a computation workers went and took results along, and
# all began again.
import time

import dask
from dask.distributed import Client

client = Client()
parts = [dask.delayed(lambda i: time.sleep(0.5) or i, pure=False)(i) for i in range(30)]
pairs = [
    dask.delayed(lambda a, b: time.sleep(0.2) or a + b)(*parts[i : i + 2]) for i in range(0, 30, 2)
]
last = dask.delayed(lambda all: time.sleep(6) or sum(all))(pairs)
assert last.compute() == sum(range(30))
