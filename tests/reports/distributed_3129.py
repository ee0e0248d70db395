# dask/distributed#3129: running the same graph twice on an adaptive cluster ended in
# CommClosedError.
# policy: {minReplicas: 1, maxReplicas: 2}
import time

import dask
from dask.distributed import Client

client = Client()
slow = dask.delayed(lambda *_: time.sleep(1) or True)
for _ in range(2):
    targets = [slow(*[slow(n, i) for i in range(n)]) for n in (2, 4, 4)]
    assert dask.compute(*targets) == (True, True, True)
