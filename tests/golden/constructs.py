"""Scripts with one construct each, and what becomes of them: their weights with one and three workers.

`docs/elastic-training.md` has them as a table, which `python -m tests.golden.constructs` prints.
"""

from __future__ import annotations

import os
import traceback
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Literal, Protocol

import torch
from torch import nn
from torch.nn import functional

from remora.free_ports import free_port
from remora.torch import Loop, Step
from tests.golden.forks import PROCESSES, begin_as_a_script
from tests.golden.subjects import CLASSES, Samples, Stream, network

Outcome = Literal["exact", "refused", "your responsibility"]


class Trained(Protocol):
    """What is to be the same for every number of workers."""

    def state_dict(self) -> dict[str, Any]: ...


@dataclass(frozen=True)
class Weights:
    """Weights without their module."""

    by_name: dict[str, torch.Tensor]

    def state_dict(self) -> dict[str, torch.Tensor]:
        return self.by_name


#: A script.
Body = Callable[[Path], Trained]

STEPS = 12
#: Seconds that all workers of a run get on a busy machine.
PATIENCE_S = 240.0


@dataclass(frozen=True)
class Construct:
    """One row of the table."""

    text: str
    outcome: Outcome
    body: Body = field(compare=False)
    #: What a refusal says; of others, what the table adds.
    says: str = ""

    @property
    def row(self) -> str:
        """As the table has it."""
        note = f": {self.says}" if self.says else ""
        return f"| {self.text} | *{self.outcome}*{note} |"


@dataclass(frozen=True)
class Ended:
    """How one worker ended."""

    weights: dict[str, torch.Tensor] | None
    #: The last line of its error; "" where there was none.
    error: str


def train_together(body: Body, workers: int, folder: Path, **variables: str) -> list[Ended]:
    """Run a script with that number of workers, as torchrun would."""
    folder.mkdir(parents=True, exist_ok=True)
    port = str(free_port())
    processes = []
    for rank in range(workers):
        place = {
            "MASTER_ADDR": "127.0.0.1",
            "MASTER_PORT": port,
            "RANK": str(rank),
            "WORLD_SIZE": str(workers),
            "GLOO_SOCKET_IFNAME": "lo",
            **variables,
        }
        processes.append(PROCESSES.Process(target=_work, args=(body, rank, folder, place)))
    for one in processes:
        one.start()
    try:
        for one in processes:
            one.join(PATIENCE_S)
            assert one.exitcode is not None, "a worker hangs"
    finally:
        for one in processes:
            one.kill()
            one.join()
    return [torch.load(folder / f"{rank}.pt", weights_only=False) for rank in range(workers)]


def _work(body: Body, rank: int, folder: Path, place: dict[str, str]) -> None:
    begin_as_a_script()
    os.environ.update(place)
    torch.set_num_threads(1)
    try:
        ended = Ended(body(folder).state_dict(), "")
    except Exception as error:
        traceback.print_exc()
        ended = Ended(None, f"{type(error).__name__}: {error}")
    torch.save(ended, folder / f"{rank}.pt")


# --- what the scripts share -------------------------------------------------------------------------------------------


def loss_of(model: nn.Module, batch: Any) -> torch.Tensor:
    return functional.cross_entropy(model(batch[0]), batch[1])


def loop_of(model: nn.Module, optimizer: Any, **changed: Any) -> Loop:
    fields: dict[str, Any] = {
        "data": Samples(60), "global_batch": 20, "shards": 6, "total_steps": STEPS, "exactness": "bitwise",
    }  # fmt: skip
    return Loop(model, optimizer, **{**fields, **changed})


def adam(model: nn.Module) -> torch.optim.Optimizer:
    return torch.optim.AdamW(model.parameters(), lr=3e-3)


def each_step(loop: Loop, *optimizers: torch.optim.Optimizer, compute: Any = loss_of) -> Iterator[Step]:
    """Steps whose gradients are there; the optimizers take theirs afterwards."""
    for step in loop:
        step.backward(compute)
        yield step
        for one in optimizers:
            one.step()


def run(loop: Loop, *optimizers: torch.optim.Optimizer, compute: Any = loss_of) -> None:
    for _ in each_step(loop, *optimizers, compute=compute):
        pass


# --- the scripts ------------------------------------------------------------------------------------------------------


def plain(folder: Path) -> nn.Module:
    model = network("transformer")
    optimizer = adam(model)
    run(loop_of(model, optimizer), optimizer)
    return model


def stream(folder: Path) -> nn.Module:
    model = network("mlp")
    optimizer = adam(model)
    run(loop_of(model, optimizer, data=Stream(60)), optimizer)
    return model


def two_optimizers(folder: Path) -> nn.Module:
    model = network("mlp")
    first = torch.optim.AdamW(model[0].parameters(), lr=3e-3)
    second = torch.optim.SGD([*model[3].parameters(), *model[5].parameters()], lr=0.05, momentum=0.9)
    run(loop_of(model, [first, second]), second, first)
    return model


def hidden_optimizer(folder: Path) -> nn.Module:
    model = network("mlp")
    first = torch.optim.AdamW(model[0].parameters(), lr=3e-3)
    second = torch.optim.SGD([*model[3].parameters(), *model[5].parameters()], lr=0.05, momentum=0.9)
    run(loop_of(model, first, state={"second": second}), second, first)
    return model


def forgotten_optimizer(folder: Path) -> nn.Module:
    model = network("mlp")
    first = torch.optim.AdamW(model[0].parameters(), lr=3e-3)
    second = torch.optim.SGD([*model[3].parameters(), *model[5].parameters()], lr=0.05, momentum=0.9)
    run(loop_of(model, first), second, first)
    return model


def parameters_elsewhere(folder: Path) -> nn.Module:
    model, head = network("mlp"), nn.Linear(CLASSES, CLASSES)
    optimizer = torch.optim.SGD([*model.parameters(), *head.parameters()], lr=0.05)
    loop = loop_of(model, optimizer)
    run(
        loop,
        optimizer,
        compute=lambda model, batch: functional.cross_entropy(head(model(batch[0])), batch[1]),
    )
    return nn.ModuleList([model, head])


def averaged(folder: Path) -> nn.Module:
    model = network("mlp")
    optimizer = adam(model)
    average = torch.optim.swa_utils.AveragedModel(
        model, multi_avg_fn=torch.optim.swa_utils.get_ema_multi_avg_fn(0.9)
    )
    for step in loop_of(model, optimizer, state={"average": average}):
        step.backward(loss_of)
        optimizer.step()
        average.update_parameters(model)
    return average


def scaled(folder: Path) -> nn.Module:
    model = network("mlp")
    optimizer = adam(model)
    # It overflows in the second step, and its optimizer leaves that one out.
    scaler = torch.amp.GradScaler("cpu", init_scale=2.0**126, growth_interval=1)
    for step in loop_of(model, optimizer, scaler=scaler):
        step.backward(loss_of)
        scaler.step(optimizer)
        scaler.update()
    return model


def low_rank(folder: Path) -> nn.Module:
    class LowRank(nn.Module):
        def __init__(self, inner: nn.Linear) -> None:
            super().__init__()
            self.inner = inner.requires_grad_(False)
            self.down = nn.Linear(inner.in_features, 2, bias=False)
            self.up = nn.Linear(2, inner.out_features, bias=False)

        def forward(self, features: torch.Tensor) -> torch.Tensor:
            return self.inner(features) + self.up(self.down(features))

    model = network("mlp").requires_grad_(False)
    model[3] = LowRank(model[3])
    optimizer = torch.optim.AdamW([one for one in model.parameters() if one.requires_grad], lr=1e-2)
    run(loop_of(model, optimizer), optimizer)
    return model


def batch_norm(folder: Path) -> nn.Module:
    model = network("resnet")
    optimizer = adam(model)
    run(loop_of(model, optimizer, micro_batch=2), optimizer)
    return model


def tied(folder: Path) -> nn.Module:
    model = network("mlp")
    model.append(nn.Linear(CLASSES, 32, bias=False))
    model.append(nn.Linear(32, CLASSES))
    model[6].weight = nn.Parameter(model[6].weight.detach())
    model[7].weight = nn.Parameter(model[7].weight.detach())
    model[5].weight = model[7].weight
    optimizer = adam(model)
    run(loop_of(model, optimizer), optimizer)
    return model


def unused(folder: Path) -> nn.Module:
    model = nn.ModuleList([network("mlp"), nn.Linear(3, 3)])
    optimizer = adam(model)
    run(
        loop_of(model, optimizer),
        optimizer,
        compute=lambda model, batch: functional.cross_entropy(model[0](batch[0]), batch[1]),
    )
    return model


def recomputed(folder: Path) -> nn.Module:
    model = network("mlp")
    optimizer = adam(model)

    def compute(model: nn.Module, batch: Any) -> torch.Tensor:
        inner = torch.utils.checkpoint.checkpoint(model[:4], batch[0], use_reentrant=False)
        return functional.cross_entropy(model[4:](inner), batch[1])

    run(loop_of(model, optimizer), optimizer, compute=compute)
    return model


def plateau(folder: Path) -> nn.Module:
    model = network("mlp")
    optimizer = adam(model)
    schedule = torch.optim.lr_scheduler.ReduceLROnPlateau(optimizer, patience=1, factor=0.5)
    for step in loop_of(model, optimizer, scheduler=schedule):
        loss = step.backward(loss_of)
        optimizer.step()
        schedule.step(loss)
    return model


def unfrozen(folder: Path) -> nn.Module:
    model = network("mlp")
    model[0].requires_grad_(False)
    optimizer = adam(model)
    for step in each_step(loop_of(model, optimizer), optimizer):
        if step.number == 5:
            model[0].requires_grad_(True)
        if step.number == 9:
            model[5].requires_grad_(False)
    return model


def unfrozen_into_a_group(folder: Path) -> nn.Module:
    model = network("mlp")
    model[0].requires_grad_(False)
    optimizer = torch.optim.AdamW([one for one in model.parameters() if one.requires_grad], lr=3e-3)
    for step in each_step(loop_of(model, optimizer), optimizer):
        if step.number == 5:
            model[0].requires_grad_(True)
            optimizer.add_param_group({"params": list(model[0].parameters())})
    return model


def steps_in_hooks(folder: Path) -> nn.Module:
    model = network("mlp")
    each = {one: torch.optim.SGD([one], lr=0.05) for one in model.parameters()}

    def take(parameter: torch.Tensor) -> None:
        each[parameter].step()
        parameter.grad = None

    for one in model.parameters():
        one.register_post_accumulate_grad_hook(take)
    run(loop_of(model, adam(model)))
    return model


def every_fourth(folder: Path) -> nn.Module:
    model = network("mlp")
    optimizer = torch.optim.SGD(model.parameters(), lr=0.05)
    for step in loop_of(model, optimizer):
        step.backward(loss_of)
        if step.number % 4 == 0:
            optimizer.step()
            optimizer.zero_grad()
    return model


def alternating(folder: Path) -> nn.Module:
    model = network("mlp")
    first = torch.optim.AdamW(model[0].parameters(), lr=3e-3)
    second = torch.optim.SGD([*model[3].parameters(), *model[5].parameters()], lr=0.05, momentum=0.9)
    for step in loop_of(model, [first, second]):
        step.backward(loss_of)
        (first if step.number % 3 == 0 else second).step()
    return model


def dropped_on_purpose(folder: Path) -> nn.Module:
    model = network("mlp")
    optimizer = adam(model)
    for step in loop_of(model, optimizer):
        loss = step.backward(loss_of)
        if loss > 1.6:
            optimizer.zero_grad()
            continue
        optimizer.step()
    return model


class OwnNoise(Samples):
    """Noise from a generator of its own, which goes on with every sample that is read."""

    def __init__(self, size: int) -> None:
        super().__init__(size)
        self.generator = torch.Generator().manual_seed(1)

    def __getitem__(self, number: int) -> tuple[torch.Tensor, torch.Tensor, int]:
        noise = torch.randn(len(self.features[number]), generator=self.generator) * 0.1
        return self.features[number] + noise, self.labels[number], number


def own_generator(folder: Path) -> nn.Module:
    model = network("mlp")
    optimizer = adam(model)
    run(loop_of(model, optimizer, data=OwnNoise(60)), optimizer)
    return model


class NumberedNoise(OwnNoise):
    """The same from a generator that is made for each sample."""

    def __getitem__(self, number: int) -> tuple[torch.Tensor, torch.Tensor, int]:
        self.generator.manual_seed(number)
        return super().__getitem__(number)


def numbered_generator(folder: Path) -> nn.Module:
    model = network("mlp")
    optimizer = adam(model)
    run(loop_of(model, optimizer, data=NumberedNoise(60)), optimizer)
    return model


def teacher(folder: Path, *, is_saved: bool, is_in_backward: bool) -> nn.Module:
    model, taught_by = network("mlp"), network("mlp")
    optimizer = adam(model)

    def follow() -> None:
        for theirs, ours in zip(taught_by.parameters(), model.parameters(), strict=True):
            theirs.data.mul_(0.9).add_(ours.data, alpha=0.1)

    def compute(model: nn.Module, batch: Any) -> torch.Tensor:
        if is_in_backward:
            follow()
        with torch.no_grad():
            wanted = taught_by(batch[0]).softmax(1)
        return loss_of(model, batch) + functional.cross_entropy(model(batch[0]), wanted)

    for step in loop_of(model, optimizer, state={"teacher": taught_by} if is_saved else None):
        step.backward(compute)
        optimizer.step()
        if not is_in_backward:
            follow()
    return model


def teacher_in_backward(folder: Path) -> nn.Module:
    return teacher(folder, is_saved=True, is_in_backward=True)


def unknown_teacher_in_backward(folder: Path) -> nn.Module:
    return teacher(folder, is_saved=False, is_in_backward=True)


def teacher_after_step(folder: Path) -> nn.Module:
    return teacher(folder, is_saved=True, is_in_backward=False)


def changed_by_rank(folder: Path) -> nn.Module:
    model = network("mlp")
    optimizer = adam(model)
    loop = loop_of(model, optimizer, check_every=4)
    for step in each_step(loop, optimizer):
        if step.number == 6 and loop.world.rank == 2:
            with torch.no_grad():
                model[3].weight.mul_(1.01)
    return model


def own_schedule(folder: Path) -> nn.Module:
    model = network("mlp")
    optimizer = adam(model)
    loop = loop_of(model, optimizer, check_every=4, exactness="sample-exact")
    losses: list[float] = []

    def compute(model: nn.Module, batch: Any) -> torch.Tensor:
        loss = loss_of(model, batch)
        losses.append(loss.item())
        return loss

    for _ in each_step(loop, optimizer, compute=compute):
        optimizer.param_groups[0]["lr"] = 0.01 * losses[-1]
    return model


def counts_batches(folder: Path) -> nn.Module:
    model = network("mlp")
    optimizer = adam(model)
    calls: list[int] = []

    def compute(model: nn.Module, batch: Any) -> torch.Tensor:
        calls.append(1)
        return loss_of(model, batch) * (1.0 + 0.01 * len(calls))

    run(loop_of(model, optimizer), optimizer, compute=compute)
    return model


class ForgetfulStream(Stream):
    """A stream whose noise goes on where the last worker or epoch left it."""

    def __iter__(self) -> Iterator[tuple[torch.Tensor, torch.Tensor, int]]:
        rank = int(os.environ["RANK"])
        generator = torch.Generator().manual_seed(rank)
        for features, label, number in super().__iter__():
            yield features + torch.randn(len(features), generator=generator), label, number


def stream_by_rank(folder: Path) -> nn.Module:
    model = network("mlp")
    optimizer = adam(model)
    run(loop_of(model, optimizer, data=ForgetfulStream(60)), optimizer)
    return model


def summed_over_tokens(folder: Path) -> nn.Module:
    model = network("mlp")
    optimizer = adam(model)

    def compute(model: nn.Module, batch: Any) -> Any:
        tokens = batch[2] % 7 + 1
        each = functional.cross_entropy(model(batch[0]), batch[1], reduction="none")
        return ((each * tokens).sum(), tokens.sum()), {"long": ((tokens > 4).sum(), len(tokens))}

    schedule = torch.optim.lr_scheduler.ReduceLROnPlateau(optimizer, patience=1, factor=0.5)
    for step in loop_of(model, optimizer, scheduler=schedule, micro_batch=2):
        loss = step.backward(compute)
        optimizer.step()
        schedule.step(loss + step.metrics["long"])
    return model


def mean_over_tokens(folder: Path) -> nn.Module:
    """One forward pass has another mean than the two that a shard is cut into; not its workers."""
    model = network("mlp")
    optimizer = adam(model)

    def compute(model: nn.Module, batch: Any) -> Any:
        tokens = batch[2] % 7 + 1
        each = functional.cross_entropy(model(batch[0]), batch[1], reduction="none")
        return (each * tokens).sum() / tokens.sum()

    run(loop_of(model, optimizer, micro_batch=2), optimizer, compute=compute)
    return model


class Damaged(Samples):
    """One sample is not a number."""

    def __init__(self, size: int) -> None:
        super().__init__(size)
        self.features[17] = float("nan")


def skips(folder: Path) -> nn.Module:
    model = network("resnet")
    optimizer = adam(model)
    run(loop_of(model, optimizer, data=Damaged(60), nonfinite="skip"), optimizer)
    assert all(one.isfinite().all() for one in model.buffers())
    return model


def goes_back(folder: Path) -> nn.Module:
    model = network("mlp")
    optimizer = adam(model)
    run(loop_of(model, optimizer, data=Damaged(60), nonfinite="rollback"), optimizer)
    assert all(one.isfinite().all() for one in model.parameters())
    return model


# --- the table --------------------------------------------------------------------------------------------------------

CONSTRUCTS = [
    Construct("a model, an optimizer, a dataset with a length, dropout, augmentation", "exact", plain),
    Construct("an iterable dataset", "exact", stream),
    Construct("several optimizers, `Loop(model, [a, b])`, in any order", "exact", two_optimizers),
    Construct("several optimizers that alternate", "exact", alternating),
    Construct("an average of the weights (EMA), updated after `optimizer.step()`, in `state`", "exact", averaged),
    Construct("a `GradScaler`, also where gradients overflow", "exact", scaled),
    Construct("adapters beside frozen layers (LoRA)", "exact", low_rank),
    Construct("BatchNorm", "exact", batch_norm),
    Construct("tied weights", "exact", tied),
    Construct("parameters that a step does not use", "exact", unused),
    Construct("activation checkpointing, `use_reentrant=False`", "exact", recomputed),
    Construct("schedules that follow the loss (`ReduceLROnPlateau`)", "exact", plateau),
    Construct("parameters frozen or unfrozen (`requires_grad_`) between two steps", "exact", unfrozen),
    Construct(
        "samples of unlike length whose function returns `(sum, count)`, also for metrics", "exact",
        summed_over_tokens, "each token counts the same",
    ),
    Construct(
        "the same with a mean over the tokens of each batch", "exact", mean_over_tokens,
        "each sample counts the same, and long ones less in a long batch",
    ),
    Construct("losses that are not finite, with `nonfinite='skip'`", "exact", skips),
    Construct("the same with `nonfinite='rollback'`", "exact", goes_back),
    Construct("steps without `optimizer.step()` whose gradients `zero_grad()` drops", "exact", dropped_on_purpose),
    Construct("noise from a generator that is seeded with the sample's number", "exact", numbered_generator),
    Construct("a teacher that follows the weights after `optimizer.step()`, in `state`", "exact", teacher_after_step),
    Construct(
        "an optimizer inside `state`", "refused", hidden_optimizer,
        "state['second'] is an optimizer or holds one that Loop does not know",
    ),
    Construct(
        "an optimizer that `Loop` was not given", "refused", forgotten_optimizer,
        "an optimizer that Loop was not given changes parameters of its model",
    ),
    Construct(
        "an optimizer with parameters that are not in the model", "refused", parameters_elsewhere,
        "the optimizer has 2 parameters that are not in the model",
    ),
    Construct(
        "`optimizer.add_param_group` after the loop has begun", "refused", unfrozen_into_a_group,
        "an optimizer got other parameters since Loop was made",
    ),
    Construct(
        "optimizers that step in hooks of the backward pass", "refused", steps_in_hooks,
        "an optimizer steps inside step.backward",
    ),
    Construct(
        "`optimizer.step()` in every n-th step only", "refused", every_fourth,
        "no optimizer has used the gradients of step 1",
    ),
    Construct(
        "a dataset with a length that draws from a generator of its own", "refused", own_generator,
        "the dataset gave two different samples for number",
    ),
    Construct(
        "a teacher in `state` that is updated inside the function given to `backward`", "refused",
        teacher_in_backward, "state['teacher'].0.weight was changed inside step.backward",
    ),
    Construct(
        "a teacher that is not in `state` and is updated there", "refused",
        unknown_teacher_in_backward, "taught_by.0.weight was changed inside step.backward",
    ),
    Construct(
        "weights that one rank alone changes", "refused", changed_by_rank,
        "After step 8 rank 2 does not hold the weights of rank 0, first in 3.weight, and after step 4 they did",
    ),
    Construct(
        "a learning rate that follows what one worker alone computes", "refused", own_schedule,
        "not hold the weights of rank 0, first in 0.weight",
    ),
    Construct(
        "a function for `backward` that counts its calls", "refused", counts_batches,
        "for one micro-batch with the same random numbers, so it keeps something from one call to the next",
    ),
    Construct(
        "an iterable dataset that is not the same in every worker", "refused", stream_by_rank,
        "rank 1 reads another sample than rank 0 for number 0 of the dataset in epoch 0",
    ),
]  # fmt: skip


def table() -> str:
    """As `docs/elastic-training.md` has it."""
    return table_of(CONSTRUCTS, "construct")


def table_of(constructs: Sequence[Construct], head: str) -> str:
    order: list[Outcome] = ["exact", "refused", "your responsibility"]
    rows = [one.row for outcome in order for one in constructs if one.outcome == outcome]
    return "\n".join([f"| {head} | with any number of workers |", "|---|---|", *rows])


if __name__ == "__main__":
    print(table())
