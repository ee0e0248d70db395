"""Parses the spec of an AdaptiveBudget."""

from __future__ import annotations

import enum
import re
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field, replace
from typing import Annotated, Any

from dask_adaptive.model.amounts import parse_quantity
from dask_adaptive.model.codec import (
    ITSELF,
    Check,
    InvalidPolicy,
    Kind,
    Listed,
    Must,
    Problem,
    decode,
)
from dask_adaptive.model.kinds import ControllerName, Count, Number, ObjectName, Seconds
from dask_adaptive.model.policy import DEFAULT_CONTROLLER
from dask_adaptive.model.scaling import Priority

#: The resource of which each worker takes one.
WORKERS = "workers"

#: Highest limit: nothing larger exists, and larger numbers cannot be computed with.
MAX_LIMIT = 1e18

#: The same pattern stands in the CRD's schema.
QUANTITY = r"[0-9]+m|[0-9]+(\.[0-9]+)?([eE][0-9]+|Ki|Mi|Gi|Ti|Pi|Ei|k|M|G|T|P|E)?"

_LIMITS_WORDS = (
    "must name at least one of workers, cpu, memory, or a resource such as nvidia.com/gpu, each"
    " with a quantity such as 200 or 4Ti"
)


def _limits(value: Any) -> Mapping[str, float]:
    if not isinstance(value, Mapping) or not value:
        raise ValueError
    return {str(name): _quantity(quantity) for name, quantity in value.items()}


def _quantity(value: Any) -> float:
    if isinstance(value, float) or not re.fullmatch(QUANTITY, str(value)):
        raise ValueError
    return float(parse_quantity(str(value)))


def _labels(value: Any) -> Mapping[str, str]:
    if not isinstance(value, Mapping) or not all(isinstance(v, str) for v in value.values()):
        raise ValueError
    return dict(value)


class LabelOperator(str, enum.Enum):
    IN = "In"
    NOT_IN = "NotIn"
    EXISTS = "Exists"
    DOES_NOT_EXIST = "DoesNotExist"


@dataclass(frozen=True, slots=True)
class Expression:
    #: Key of the label.
    key: str
    #: How the label and values are compared.
    operator: LabelOperator
    #: Values for In and NotIn.
    values: Annotated[tuple[str, ...], Listed(50)] = ()

    def holds(self, labels: Mapping[str, str]) -> bool:
        if self.operator in (LabelOperator.IN, LabelOperator.NOT_IN):
            return (labels.get(self.key) in self.values) is (self.operator is LabelOperator.IN)
        return (self.key in labels) is (self.operator is LabelOperator.EXISTS)


@dataclass(frozen=True, slots=True)
class Selector:
    """A Kubernetes label selector; an empty one selects everything."""

    #: Labels that a namespace must have.
    match_labels: Annotated[
        Mapping[str, str], Kind(_labels, "must be labels, each with a string")
    ] = field(default_factory=dict)
    #: Conditions on the labels of a namespace; all must hold.
    match_expressions: Annotated[tuple[Expression, ...], Listed(50)] = ()

    def selects(self, labels: Mapping[str, str]) -> bool:
        return self.match_labels.items() <= labels.items() and all(
            expression.holds(labels) for expression in self.match_expressions
        )


@dataclass(frozen=True, slots=True)
class ShareRule:
    """
    The share of a namespace, or of one cluster in it, for all of its worker groups together. The
    first matching rule counts.
    """

    #: Name of the namespace.
    namespace: ObjectName
    #: Name of a DaskCluster in the namespace. Without it, all of them.
    cluster: str = ""
    #: Weight by which resources are divided while several compete.
    weight: Annotated[Number, Must(lambda w: 0.001 <= w <= 1000, "must be 0.001 to 1000")] = 1
    #: Number of workers that it gets before others get more than their own guarantee.
    guarantee: Count = 0
    #: Clusters with a higher priority get all that they need before others get more than their
    #: guarantee.
    priority: Priority = 0


@dataclass(frozen=True, slots=True)
class Reclaim:
    #: How long after a worker group has grown no worker is taken from it for others.
    after_s: Seconds = 60.0


@dataclass(frozen=True, slots=True)
class AdaptiveBudget:
    """One AdaptiveBudget."""

    #: Limits of all clusters of the budget together, by resource. workers counts workers; cpu,
    #: memory and all others count what worker pods request.
    limits: Annotated[Mapping[str, float], Kind(_limits, _LIMITS_WORDS)]
    #: Labels of the namespaces whose DaskClusters share the budget. Without it, all namespaces.
    #: Labels of DaskClusters do not count, because their owners can change them.
    namespace_selector: Selector = Selector()
    #: Names of the namespaces whose DaskClusters share the budget. Without it, all namespaces.
    namespaces: Annotated[tuple[ObjectName, ...], Listed(200, ITSELF)] | None = None
    #: Shares of namespaces or clusters, for all of their worker groups together. The first entry
    #: that matches a cluster counts; all others have a weight of 1.
    shares: Annotated[tuple[ShareRule, ...], Listed(200)] = ()
    #: Whether a worker group may use more than its share while others need less than theirs.
    borrowing: bool = True
    #: When workers are taken back for others.
    reclaim: Reclaim = Reclaim()
    #: Operators of this name divide the budget among the clusters whose policies they serve; all
    #: other workers count as held. Default dask-adaptive, an operator's default name.
    controller_name: ControllerName = DEFAULT_CONTROLLER

    def within(self, namespace: str) -> AdaptiveBudget:
        """
        Restrict a namespaced budget to the clusters of its namespace (empty: cluster-scoped).

        Raises:
            InvalidPolicy: It names others.
        """
        if not namespace:
            return self
        if self.namespaces not in (None, (namespace,)):
            words = f"may only name {namespace}, the budget's own namespace; leave it out"
            raise InvalidPolicy(Problem("spec.namespaces", words))
        return replace(self, namespaces=(namespace,), namespace_selector=Selector())

    def covers(self, namespace: str, labels: Mapping[str, str]) -> bool:
        """True if a cluster shares the budget; `labels` are its namespace's."""
        is_within = self.namespaces is None or namespace in self.namespaces
        return is_within and self.namespace_selector.selects(labels)

    def rule_for(self, namespace: str, name: str) -> ShareRule:
        own = (rule for rule in self.shares if rule.namespace == namespace)
        return next((rule for rule in own if rule.cluster in ("", name)), ShareRule(namespace))

    def checks(self) -> Iterator[Check]:
        if self.namespaces == ():
            yield Check(".namespaces", "must name one; leave it out for all", ("namespaces",))
        if any(limit > MAX_LIMIT for limit in self.limits.values()):
            yield Check(".limits", f"must be at most {MAX_LIMIT:g}", ("limits",))


def parse_budget(spec: Mapping[str, Any]) -> AdaptiveBudget:
    """
    Read the spec of an AdaptiveBudget, defaults filled in as the CRD's schema does.

    Raises:
        InvalidPolicy: The user can fix it; the text has a line for each problem, with its path.
    """
    return decode(AdaptiveBudget, spec, "spec")
