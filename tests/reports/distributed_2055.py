# dask/distributed#2055: all workers paused for want of memory, and nothing went on.
# policy: {maxReplicas: 6}
# workers: {memory_limit: 400MiB}
import time

from dask.distributed import Client


def leak(i):
    import builtins

    builtins.__dict__.setdefault("leaked", []).append(b"x" * 60 * 2**20)
    return time.sleep(1) or i


client = Client()
assert client.gather(client.map(leak, range(20))) == list(range(20))
