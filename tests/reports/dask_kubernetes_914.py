# dask/dask-kubernetes#914: scaling down the default group retired workers of another one.
# policy: {workerGroups: [{name: t-highmem, minReplicas: 1, maxReplicas: 1}]}
# workers: {resources: {t-highmem: MEM=1}}
from dask.distributed import Client
from retold import grow, shrink, until, workers

client = Client()
until(lambda: any("highmem" in worker for worker in workers(client)))
kept = {worker for worker in workers(client) if "highmem" in worker}
grow(client, 3)
shrink(client, 1)
assert workers(client) == kept
