# dask/distributed#4069: whenever the tasks were almost done a worker was killed, and hundreds ran
# again, for ever.
import time

from dask.distributed import Client

client = Client()
squares = client.map(lambda x: time.sleep(0.1) or x**2, range(120))
negative = client.map(lambda x: -x, squares)
assert client.submit(sum, negative).result() == -sum(x**2 for x in range(120))
