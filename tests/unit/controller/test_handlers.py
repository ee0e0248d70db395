"""The handlers by which kopf tells of what people write."""

from __future__ import annotations

from dask_adaptive.controller.handlers import registry_for
from dask_adaptive.kube.cache.world import KINDS

BY_PEOPLE = [kind for kind in KINDS if kind.by_people]


def test_each_kind_that_people_write_has_one_handler_and_can_do_without_the_others() -> None:
    for kind in BY_PEOPLE:
        (handler,) = registry_for([kind])._watching.get_all_handlers()
        assert kind.resource.plural in str(handler.selector)

    assert len(BY_PEOPLE) == len(registry_for(KINDS)._watching.get_all_handlers())
