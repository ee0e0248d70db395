# NVIDIA/raft#237: a function for all workers was also sent to those that had gone, and hung.
import time

from dask.distributed import Client
from retold import grow, workers

client = Client()
for _ in range(2):
    grow(client)
    while len(workers(client)) > 1:
        began = time.monotonic()
        assert set(client.run(lambda: "ready").values()) == {"ready"}
        assert time.monotonic() - began < 20
        time.sleep(0.6)
