# dask/dask-jobqueue#518: persisted data did not survive workers that come to the end of their
# lifetime.
# policy: {recycle: {lifetime: {max: 6s, margin: 2s}}}
import time

import dask.array as da
from dask.distributed import Client, wait

client = Client()
kept = da.ones((400, 400), chunks=100).persist()
wait(kept)
for _ in range(4):
    time.sleep(4)
    assert kept.sum().compute() == 160_000
