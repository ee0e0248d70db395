# dask/distributed#3558: a result that only its own worker can hold was copied again and again.
import time

from dask.distributed import Client, wait
from retold import grow, shrink, workers

client = Client()
grow(client)
plain = client.map(lambda i: time.sleep(0.2) or bytes(1000), range(30))
odd = client.map(lambda i: time.sleep(0.5) or (i for _ in range(9)), range(100, 103))
wait([*plain, *odd])
time.sleep(8)
assert client.gather(client.map(sum, odd)) == [900, 909, 918]
assert sum(map(len, client.gather(plain))) == 30_000
holders = {worker for held in client.who_has(odd).values() for worker in held}
assert len(workers(client)) == len(holders)
del odd
shrink(client)
