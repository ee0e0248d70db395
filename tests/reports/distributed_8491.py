# dask/distributed#8491: a second task began although the job's walltime was too short for it, and
# was killed and redone.
# policy: {recycle: {lifetime: {max: 16s, walltime: true, margin: 2s}}}
import time

import psutil
from dask.distributed import Client

client = Client()


def simulate(i):
    time.sleep(3)
    return time.time() - psutil.Process().create_time()


ages = client.gather(client.map(simulate, range(12)))
assert max(ages) < 16, ages
