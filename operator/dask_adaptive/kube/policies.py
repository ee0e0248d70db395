"""What the policy of a cluster says of its scheduler, for a pod that is about to be made."""

from __future__ import annotations

import asyncio
import logging

from dask_adaptive.deadline import timeout
from dask_adaptive.kube.api import KubeApi
from dask_adaptive.kube.errors import KubeError
from dask_adaptive.kube.objects import PolicyObject, parse_policy_object
from dask_adaptive.kube.resources import POLICIES
from dask_adaptive.kube.world import World
from dask_adaptive.model.keys import ClusterKey
from dask_adaptive.model.scheduler_spec import SchedulerSettings, scheduler_settings
from dask_adaptive.model.spec import InvalidPolicy

logger = logging.getLogger(__name__)

#: A pod waits for no list longer than this; the API server waits 5 s for the webhook.
PATIENCE_S = 2.0

#: One file often holds a cluster and its policy, and dask-kubernetes may be faster than the second.
SECOND_LOOK_S = 0.5


class PolicyFinder:
    """
    Finds the settings. Fails open: where the policy can't be read or understood, nothing but the
    defaults holds until the scheduler's next pod, and the policy's status says what waits.
    """

    def __init__(self, api: KubeApi, world: World) -> None:
        self._api, self._world = api, world

    async def settings(self, key: ClusterKey, *, fresh: bool) -> SchedulerSettings:
        """
        What holds for a cluster.

        Args:
            fresh: Ask the API server where the watch has told of no policy: one that is applied
                with its cluster is younger than what the watch has said, and a scheduler starts
                only once.
        """
        policies = self._world.of(PolicyObject, key)
        if fresh and not policies:
            policies = await self._asked(key)
        chosen = _chosen(policies)
        if chosen is None:
            return SchedulerSettings()
        try:
            return scheduler_settings(chosen.spec)
        except InvalidPolicy as exc:
            logger.warning("Pod of %s gets defaults: %s", key, exc)
            return SchedulerSettings()

    async def _asked(self, key: ClusterKey) -> list[PolicyObject]:
        try:
            async with timeout(PATIENCE_S):
                found = await self._listed(key)
                if not found:
                    await asyncio.sleep(SECOND_LOOK_S)
                    found = await self._listed(key)
        except (KubeError, asyncio.TimeoutError) as exc:
            logger.warning("Pod of %s gets defaults, policies can't be listed: %r", key, exc)
            return []
        return found

    async def _listed(self, key: ClusterKey) -> list[PolicyObject]:
        found = await self._api.list(POLICIES.path(key.namespace))
        return [policy for policy in map(parse_policy_object, found) if policy.key == key]


def _chosen(policies: list[PolicyObject]) -> PolicyObject | None:
    """Of several one that people wrote; of several such none, as long as nobody mends it."""
    staying = [p for p in policies if not p.meta.going]
    written = [p for p in staying if not p.managed] or staying
    return written[0] if len(written) == 1 else None
