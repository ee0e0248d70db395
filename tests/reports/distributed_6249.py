# dask/distributed#6249: an actor is lost for ever with its worker.
import time

from dask.distributed import Client
from retold import grow, shrink


class Counter:
    n = 0

    def add(self, by):
        self.n += by
        return self.n


client = Client()
grow(client)
counters = [client.submit(Counter, actor=True, pure=False).result() for _ in range(3)]
for i in range(1, 4):
    assert [counter.add(1).result() for counter in counters] == [i] * 3
    time.sleep(4)
del counters
shrink(client)
