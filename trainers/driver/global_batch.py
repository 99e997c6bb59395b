"""The batch of a step that the first workers made of their own configuration: the job keeps it (pure).

A job that names its batch (`elastic.global_batch`) has it in its plan; of one that leaves it to the script's
configuration, the workers report it as soon as they have made it.  From then on the plan is as if the job had named it.
"""

from __future__ import annotations

from dataclasses import replace

from remora.spec.worker_sizes import NoSizePossible, WorkerSizes
from trainers.plan import AttemptPlan

#: By this variable scripts get the samples of a step.
_VARIABLE = "REMORA_GLOBAL_BATCH"
#: Samples of a step at most, as in a specification.
_MOST = 2**31


def with_batch(plan: AttemptPlan, samples: object, workers: int) -> AttemptPlan | None:
    """The plan in which a step has `samples` samples with any number of workers, as `workers` workers reported it.

    None where the plan stays as it is: it has a batch already, or these workers do not divide the reported one.
    """
    if plan.backend != "deepspeed" or _VARIABLE in plan.elastic_variables:
        return None
    if type(samples) is not int or not 1 <= samples <= _MOST:
        return None
    sizes = _dividing(plan.sizes, samples)
    if sizes is None or not sizes.allows(workers):
        return None
    return replace(plan, sizes=sizes, elastic_variables={**plan.elastic_variables, _VARIABLE: str(samples)})


def sizes_in(plan: AttemptPlan, sizes: WorkerSizes) -> WorkerSizes:
    """Other sizes that the service gives the attempt, without those that do not divide the batch of its plan.

    The service may not have stored yet which batch the workers reported.  Where none would be left, all of them.
    """
    samples = plan.elastic_variables.get(_VARIABLE)
    if plan.backend != "deepspeed" or samples is None or sizes.divided is not None:
        return sizes
    return _dividing(sizes, int(samples)) or sizes


def _dividing(sizes: WorkerSizes, samples: int) -> WorkerSizes | None:
    try:
        return replace(sizes, divided=samples)
    except NoSizePossible:
        return None
