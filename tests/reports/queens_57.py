# queens-py/queens#57: workers restarted after each job, and one in twenty restarts hit the next
# job.
# policy: {recycle: {tasks: {max: 2}, strategy: {type: InPlace}}, maxReplicas: 2}
import time

from dask.distributed import Client

client = Client()
assert client.gather(client.map(lambda i: time.sleep(0.3) or i, range(10))) == list(range(10))
