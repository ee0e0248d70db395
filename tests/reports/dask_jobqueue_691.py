# dask/dask-jobqueue#691: after the lifetime of the workers no others were started.
# policy: {recycle: {lifetime: {max: 6s, margin: 1s}}, minReplicas: 2}
from dask.distributed import Client
from retold import until, workers

client = Client()
until(lambda: len(workers(client)) == 2)
first = workers(client)
until(lambda: len(workers(client) - first) == 2)
