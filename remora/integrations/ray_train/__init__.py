"""Scripts written for Ray Train's `TorchTrainer`, on the workers that Remora has started.

    python -m remora.integrations.ray_train train.py

or, with one line in the script, `import remora.integrations.ray_train` before `TorchTrainer(...)`.  From then on
`fit()` runs the training loop in this process as the worker that it is.  Needs torch and Ray Train V2 (`ray[train]`).
"""

from remora.integrations.ray_train.take_over import take_over

__all__: list[str] = []

take_over()
