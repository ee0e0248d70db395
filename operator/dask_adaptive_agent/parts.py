"""The parts of one agent: each is given those that it uses."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any
from uuid import uuid4

from dask_adaptive_agent.component import Context
from dask_adaptive_agent.demand.client_calls import ClientCalls
from dask_adaptive_agent.demand.demand import DemandView
from dask_adaptive_agent.demand.durations import Durations
from dask_adaptive_agent.drain.drains import Drains
from dask_adaptive_agent.pins.pinned_workers import KnownWorkers, PinnedWorkers, WorkerFloors
from dask_adaptive_agent.quotas.cordons import Cordons
from dask_adaptive_agent.relief.registry import Reliefs, at_start
from dask_adaptive_agent.service.service import Service
from dask_adaptive_agent.service.task_mover import StuckThreads
from dask_adaptive_agent.service.vetoes import Vetoes, WorkersToClose
from dask_adaptive_agent.shuffle.delay import ShuffleDelay
from dask_adaptive_agent.shuffle.runs import Barriers, Shuffles


class Parts(Context):
    """Every part of one agent, none of which knows this class."""

    def __init__(self, scheduler: Any, clock: Callable[[], float]) -> None:
        super().__init__(scheduler, clock)
        self.session = uuid4().hex
        self.settings.update({"relief": at_start()})
        self.service = Service(self)
        # Whoever holds workers, or wants some.
        self.shuffles = Shuffles(self, self.service)
        self.pins = PinnedWorkers(self, self.service, self.shuffles)
        self.known = KnownWorkers(self, self.pins)
        self.floors = WorkerFloors(self)
        self.clients = ClientCalls(self)
        # The ways out of service, which take workers over from each other.
        self.durations = Durations(self)
        self.cordons = Cordons(self, self.service, self.pins, self.durations)
        self.vetoes = Vetoes(self, self.service, self.pins, self.clients)
        self.drains = Drains(self, self.cordons, self.vetoes)
        self.closing = WorkersToClose(self, self.vetoes, self.shuffles)
        # The rest reports, puts off, or takes off a load.
        self.barriers = Barriers(self, self.shuffles)
        self.shuffle_wait = ShuffleDelay(self, self.service, self.barriers, self.durations)
        self.reliefs = Reliefs(self)
        self.demand = DemandView(self, self.barriers, self.durations)
        self.stuck = StuckThreads(self)
        #: The hooks in upstream's code, by the name under which parts ask for them when they are
        #: first needed.
        self.hooks = {
            "counting": self.cordons.install,
            "orders": self.drains.install,
            "removals": lambda patches: patches.before_removals(self.drains.removing),
            "gates": self.service.install,
            "copies": self.vetoes.copies.install,
            "workers_to_close": self.closing.install,
            "names": self.drains.free_names,
            "addresses": self.known.install,
            "clients": self.clients.install,
            "shuffle_choice": self.shuffles.install,
            "shuffle_wait": self.shuffle_wait.install,
        }
