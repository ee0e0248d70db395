# dask/dask-jobqueue#230: with one task a worker, by a resource, only one of twenty workers had
# something to do.
# workers: {nthreads: 4, resources: {t-default: processes=1}}
from dask.distributed import Client
from retold import hold, until, workers

client = Client()
go, tasks = hold(client, 3, resources={"processes": 1})
until(lambda: sum(map(bool, client.processing().values())) == 3)
assert len(workers(client)) == 3
go.set()
client.gather(tasks)
