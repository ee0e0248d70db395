# dask/distributed#4394: `--lifetime` and adaptive scaling got into each other's way as a cluster
# with data shrank.
# env: {DASK_DISTRIBUTED__WORKER__LIFETIME__DURATION: 6s}
import time

from dask.distributed import Client, wait

client = Client()
kept = client.map(lambda i: bytes([i]) * 1000, range(20))
wait(kept)
time.sleep(20)
assert client.gather(kept) == [bytes([i]) * 1000 for i in range(20)]
