# dask/distributed#4193: a worker whose memory leaks paused, and stayed so for ever with its tasks.
# policy: {recycle: {memory: {soft: 50%, for: 1s}}, maxReplicas: 2}
# workers: {memory_limit: 400MiB}
import time

from dask.distributed import Client


def leak(i):
    import builtins

    kept = builtins.__dict__.setdefault("leaked", [])
    kept.append(b"x" * 30 * 2**20)
    time.sleep(1)
    return i


client = Client()
assert client.gather(client.map(leak, range(24))) == list(range(24))
