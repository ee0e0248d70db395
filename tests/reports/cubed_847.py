# cubed-dev/cubed#847: each stage of a plan knows how many workers it needs, and could not say so.
import time

from dask.distributed import Client
from retold import shrink, until, workers

from dask_adaptive_agent import want

client = Client()
for wide in (3, 1, 2):
    with want(wide):
        until(lambda n=wide: len(workers(client)) >= n)
        assert sum(client.gather(client.map(lambda i: time.sleep(0.1) or i, range(wide)))) >= 0
        shrink(client, wide)
