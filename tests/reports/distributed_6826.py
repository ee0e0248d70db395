# dask/distributed#6826: a cluster whose memory is full of results, with no work left, did not grow.
# workers: {memory_limit: 400MiB}
from dask.distributed import Client, wait
from retold import until, workers

client = Client()
full = client.map(lambda i: bytes([i]) * 30 * 2**20, range(14))
until(lambda: len(workers(client)) >= 2)
wait(full)
assert sum(client.gather(client.map(len, full))) == 14 * 30 * 2**20
