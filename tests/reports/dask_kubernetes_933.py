# dask/dask-kubernetes#933: only one worker group of a cluster could be scaled, so each kind of task
# had a cluster of its own.
# policy: {workerGroups: [{name: t-gpu, maxReplicas: 2}]}
# workers: {resources: {t-gpu: GPU=1}}
import os
import time

from dask.distributed import Client
from retold import until, workers

client = Client()
name = "DASK_WORKER_NAME"
on_gpu = client.map(lambda i: time.sleep(0.5) or os.environ[name], range(8), resources={"GPU": 1})
plain = client.map(lambda i: time.sleep(0.5) or os.environ[name], range(8, 16))
assert {where.rpartition("-worker-")[0] for where in client.gather(on_gpu)} == {"t-gpu"}
client.gather(plain)
del on_gpu, plain  # the last worker stays with the last results
until(lambda: not any("gpu" in worker for worker in workers(client)))
