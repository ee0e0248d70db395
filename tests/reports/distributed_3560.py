# dask/distributed#3560: workers that came after `upload_file` lacked the module.
import tempfile
from pathlib import Path

from dask.distributed import Client
from retold import grow


def answer(i):
    import uploaded

    return uploaded.answer(i)


path = Path(tempfile.mkdtemp()) / "uploaded.py"
path.write_text("def answer(i): return i + 1\n")
client = Client()
client.upload_file(str(path))
grow(client)
assert client.gather(client.map(answer, range(9))) == list(range(1, 10))
