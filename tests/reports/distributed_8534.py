# dask/distributed#8534: a restart of all workers, again and again, ended in a timeout.
# redone: true
# workers: {nanny: true}
# policy: {minReplicas: 2}
from dask.distributed import Client
from retold import until, workers

client = Client()
until(lambda: len(workers(client)) == 2)
for i in range(3):
    client.restart()
    assert client.submit(lambda x: x, i, pure=False).result() == i
