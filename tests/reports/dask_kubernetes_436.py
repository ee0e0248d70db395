# dask/dask-kubernetes#436: a worker that went took results with it, and expensive tasks ran again.
import time

import dask.array as da
from dask.distributed import Client, wait
from retold import grow, shrink

client = Client()
grow(client)
wide = da.ones((600, 600), chunks=100).map_blocks(lambda b: time.sleep(0.1) or b).persist()
wait(wide)
shrink(client)
assert wide.sum().compute() == 360_000
