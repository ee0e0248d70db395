"""What people want of each relief: from the environment at start, from the policy later on."""

from __future__ import annotations

import logging
import os
from collections.abc import Mapping

from dask_adaptive_agent import wire

logger = logging.getLogger(__name__)

#: Set in a scheduler's pod, so that what is disabled never begins: `pickling=Shared,host=Disabled`.
VARIABLE = "DASK_ADAPTIVE_RELIEF"

Choices = Mapping[str, str]


def at_start(environ: Mapping[str, str] = os.environ) -> dict[str, str]:
    """What the environment says. Anything odd in it is logged, and left out."""
    choices = {}
    for word in filter(None, (w.strip() for w in environ.get(VARIABLE, "").split(","))):
        name, _, choice = word.partition("=")
        if choice in wire.RELIEFS.get(name, ()):
            choices[name] = choice
        else:
            logger.warning("%s: %.80r is not known here, and ignored", VARIABLE, word)
    return choices


def choice_of(name: str, choices: Choices) -> str:
    """What is wanted of one relief; what a newer operator says and we don't know counts as Auto."""
    choice = choices.get(name, wire.AUTO)
    return choice if choice in wire.RELIEFS[name] else wire.AUTO
