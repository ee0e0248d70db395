"""The reliefs that there are, in the order in which they are applied."""

from __future__ import annotations

from dask_adaptive_agent.relief.base import Relief
from dask_adaptive_agent.relief.client_info import ClientInfo
from dask_adaptive_agent.relief.host import Host
from dask_adaptive_agent.relief.identity import Identity
from dask_adaptive_agent.relief.idle import Idle
from dask_adaptive_agent.relief.pickling import Pickling
from dask_adaptive_agent.relief.prefixes import Prefixes

KINDS: tuple[type[Relief], ...] = (Prefixes, Idle, Pickling, Host, Identity, ClientInfo)
