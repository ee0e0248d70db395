"""How many GPUs on machines that are there nobody claims."""

from __future__ import annotations

import logging
from collections import Counter
from collections.abc import Callable, Iterable, Mapping

from dask_adaptive.kube.api import KubeApi
from dask_adaptive.kube.claims import gpus_of
from dask_adaptive.kube.errors import KubeError
from dask_adaptive.kube.nodes import NodeObject
from dask_adaptive.kube.resources import PODS
from dask_adaptive.kube.world import World

logger = logging.getLogger(__name__)

#: Pods of all namespaces are listed at most so often.
EVERY_S = 15.0

#: Pods that have ended claim nothing.
_UNENDED = "status.phase!=Succeeded,status.phase!=Failed"


class FreeGpus:
    """
    Counts free GPUs, out of the nodes in the cache and a list of all pods.

    One for all clusters: the list is a long one.
    """

    def __init__(self, api: KubeApi, world: World, clock: Callable[[], float]) -> None:
        self._api, self._world, self._clock = api, world, clock
        self._claimed: Mapping[str, Counter[str]] | None = None  # by node
        self._asked_at = float("-inf")

    async def count(self, needs: Mapping[str, int]) -> int | None:
        """
        How many GPUs could be claimed at once by pods like these; None if nobody knows.

        Args:
            needs: By resource, how many one pod claims. Where pods need several, those on a machine
                that has too few for one more pod are not free.
        """
        every = self._world.all(NodeObject)
        if not every:
            return None  # we are not allowed to see any
        nodes = [node for node in every if node.takes_pods and node.gpus]
        claimed = await self._claims() if nodes else {}
        if claimed is None:
            return None
        return min((_free(nodes, claimed, name, need) for name, need in needs.items()), default=0)

    async def _claims(self) -> Mapping[str, Counter[str]] | None:
        if self._clock() - self._asked_at < EVERY_S:
            return self._claimed
        self._asked_at = self._clock()
        claimed: dict[str, Counter[str]] = {}
        try:
            async for pod in self._api.each(PODS.path(), field=_UNENDED):
                spec = pod.get("spec") or {}
                gpus = gpus_of(spec)
                if gpus and spec.get("nodeName"):
                    claimed.setdefault(spec["nodeName"], Counter()).update(dict(gpus))
        except KubeError as exc:
            logger.warning("Which GPUs are free can't be found out: %s", exc)
            self._claimed = None
        else:
            self._claimed = claimed
        return self._claimed


def _free(
    nodes: Iterable[NodeObject], claimed: Mapping[str, Counter[str]], name: str, need: int
) -> int:
    taken = {node: gpus[name] for node, gpus in claimed.items()}
    left = (dict(n.gpus).get(name, 0) - taken.get(n.meta.name, 0) for n in nodes)
    return sum(max(rest, 0) // need * need for rest in left)
