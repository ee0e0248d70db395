# dask/distributed#1638: tasks that start tasks and wait for them take all threads, and nothing goes
# on.
import time

from dask.distributed import Client, worker_client


def fib(n):
    if n < 2:
        return time.sleep(0.1) or n
    with worker_client() as client:
        return sum(client.gather(client.map(fib, [n - 1, n - 2], pure=False)))


assert Client().submit(fib, 6).result() == 8
