# pangeo-data/pangeo#757: workers were killed for no reason that could be seen, with adaptive
# scaling only.
import time

import dask.array as da
from dask.distributed import Client

client = Client()
x = da.random.random((900, 900), chunks=(900, 100)).map_blocks(lambda b: time.sleep(0.3) or b)
rechunked = x.rechunk((100, 900), method="tasks")
assert rechunked.mean(axis=1).compute().shape == (900,)
