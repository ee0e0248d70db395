# lightgbm-org/LightGBM#3775: a worker was gone when it was its turn to find a port for the others.
import socket
import time

from dask.distributed import Client, get_worker, wait
from retold import grow


def find_port():
    with socket.socket() as free:
        free.bind(("127.0.0.1", 0))
        return free.getsockname()[1]


client = Client()
grow(client)
parts = client.map(lambda i: time.sleep(0.3) or i, range(12))
wait(parts)
machines = [where for where, held in client.has_what().items() if held]
time.sleep(8)
assert set(client.run(find_port, workers=machines)) == set(machines)
fits = [client.submit(lambda: get_worker().address, workers=[m], pure=False) for m in machines]
assert client.gather(fits) == machines
