"""The learning rate after a change of the global batch between two jobs (pure).

Workers coming and going change nothing: the global batch of a job stays the same, and so does its learning rate.
"""

from __future__ import annotations

from collections.abc import Callable


def linear_scaling(
    global_batch: int, tuned_for: int, *, warmup_steps: int = 0, steps_done: int = 0
) -> Callable[[int], float]:
    """Factors for a learning rate that was tuned with global batches of `tuned_for` samples, for `LambdaLR`.

    The factor is proportional to the batch; it is reached in a straight line from 1 over the first `warmup_steps` steps
    after `steps_done`.  Raises ValueError for sizes below 1 and negative numbers of steps.

        scheduler = LambdaLR(optimizer, linear_scaling(1024, tuned_for=256, warmup_steps=500))
    """
    if global_batch < 1 or tuned_for < 1:
        raise ValueError(f"a global batch has at least 1 sample, not {min(global_batch, tuned_for)}")
    if warmup_steps < 0 or steps_done < 0:
        raise ValueError(f"a number of steps is at least 0, not {min(warmup_steps, steps_done)}")
    factor = global_batch / tuned_for

    def at(step: int) -> float:
        since = step - steps_done
        share = 1.0 if since >= warmup_steps else max(0, since) / warmup_steps
        return 1.0 + (factor - 1.0) * share

    return at
