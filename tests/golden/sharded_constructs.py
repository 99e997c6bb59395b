"""Scripts with `ShardedLoop` and one construct each, as `constructs.py` has them for `Loop`."""

from __future__ import annotations

import os
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import torch
from torch import nn
from torch.distributed.fsdp import MixedPrecisionPolicy, fully_shard
from torch.nn import functional
from torch.utils.data import Subset

from remora.torch import Step
from remora.torch.sharded import ShardedLoop
from tests.golden.constructs import STEPS, Construct, Damaged, OwnNoise, Samples, Weights, loss_of, table_of
from tests.golden.more_constructs import IN_THE_FUNCTION, NOT_REPEATED, OwnDropout, Running
from tests.golden.subjects import FEATURES, network


def cut(model: nn.Module, mesh: Any) -> nn.Module:
    """Shard each layer, and what is left."""
    for layer in model:
        if sum(1 for _ in layer.parameters()) and layer is not model[-1]:
            fully_shard(layer, mesh=mesh)
    return fully_shard(model, mesh=mesh)


def built(mesh: Any) -> Any:
    model = cut(network("mlp"), mesh)
    return model, torch.optim.AdamW(model.parameters(), lr=3e-3)


def resnet(mesh: Any) -> Any:
    model = cut(network("resnet"), mesh)
    return model, torch.optim.AdamW(model.parameters(), lr=3e-3)


def loop_of(build: Any = built, **changed: Any) -> ShardedLoop:
    fields: dict[str, Any] = {"data": Samples(60), "global_batch": 20, "shards": 6, "total_steps": STEPS}
    return ShardedLoop(build, **{**fields, **changed})


def each_step(loop: ShardedLoop, compute: Any = loss_of) -> Iterator[Step]:
    """Steps whose gradients are there; the optimizer takes them afterwards."""
    for step in loop:
        step.backward(compute)
        yield step
        loop.optimizer.step()


def trained(loop: ShardedLoop, compute: Any = loss_of) -> Weights:
    for _ in each_step(loop, compute):
        pass
    return whole(loop)


def whole(loop: ShardedLoop) -> Weights:
    """All of the weights; every worker calls it."""
    parameters = {name: one.full_tensor().detach() for name, one in loop.model.named_parameters()}
    return Weights(parameters | dict(loop.model.named_buffers()))


# --- the scripts ------------------------------------------------------------------------------------------------------


def plain(folder: Path) -> Weights:
    loop = loop_of()
    for step in loop:
        step.backward(loss_of)
        torch.nn.utils.clip_grad_norm_(loop.model.parameters(), 0.1)
        loop.optimizer.step()
    return whole(loop)


def batch_norm(folder: Path) -> Weights:
    return trained(loop_of(resnet, micro_batch=2))


def decay_groups(folder: Path) -> Weights:
    def build(mesh: Any) -> Any:
        model = cut(network("mlp"), mesh)
        wide = [one for one in model.parameters() if one.dim() > 1]
        narrow = [one for one in model.parameters() if one.dim() == 1]
        groups = [{"params": wide, "weight_decay": 0.1}, {"params": narrow, "weight_decay": 0.0, "lr": 1e-2}]
        return model, torch.optim.AdamW(groups, lr=3e-3)

    return trained(loop_of(build))


def frozen_in_build(folder: Path) -> Weights:
    def build(mesh: Any) -> Any:
        model = network("mlp")
        model[0].requires_grad_(False)
        cut(model, mesh)
        return model, torch.optim.AdamW([one for one in model.parameters() if one.requires_grad], lr=3e-3)

    return trained(loop_of(build))


class Taught(nn.Sequential):
    """A network, and a teacher that follows it."""

    def __init__(self) -> None:
        super().__init__(network("mlp"), network("mlp").requires_grad_(False))

    def forward(self, features: torch.Tensor) -> torch.Tensor:
        scores = self[0](features)
        return scores - 0.1 * self[1](features).detach()


def teacher_in_the_model(folder: Path) -> Weights:
    def build(mesh: Any) -> Any:
        model = Taught()
        for one in model:
            cut(one, mesh)
        fully_shard(model, mesh=mesh)
        return model, torch.optim.AdamW(model[0].parameters(), lr=3e-3)

    loop = loop_of(build)
    for step in loop:
        step.backward(loss_of)
        loop.optimizer.step()
        with torch.no_grad():
            for theirs, ours in zip(loop.model[1].parameters(), loop.model[0].parameters(), strict=True):
                theirs.lerp_(ours, 0.1)
    return whole(loop)


def skips(folder: Path) -> Weights:
    weights = trained(loop_of(resnet, data=Damaged(60), nonfinite="skip"))
    assert all(one.isfinite().all() for one in weights.state_dict().values())
    return weights


def kept_company(folder: Path) -> Weights:
    """The last batch of an epoch has two samples, and not finite is the one that the third worker saw last."""
    return trained(loop_of(data=Damaged(22), nonfinite="skip"))


def goes_back(folder: Path) -> Weights:
    weights = trained(loop_of(data=Damaged(60), nonfinite="rollback", snapshot_every=3))
    assert all(one.isfinite().all() for one in weights.state_dict().values())
    return weights


def stops(folder: Path) -> Weights:
    return trained(loop_of(data=Damaged(60), nonfinite="stop"))


def synchronized(folder: Path) -> Weights:
    def build(mesh: Any) -> Any:
        model = cut(nn.SyncBatchNorm.convert_sync_batchnorm(network("resnet")), mesh)
        return model, torch.optim.AdamW(model.parameters(), lr=3e-3)

    return trained(loop_of(build))


class Tied(nn.Sequential):
    """A network whose first layer is used a second time by another module."""

    def __init__(self) -> None:
        super().__init__(
            nn.Linear(FEATURES, FEATURES), nn.Tanh(), nn.Linear(FEATURES, FEATURES), network("mlp")
        )
        self[2].weight = self[0].weight


def tied(folder: Path) -> Weights:
    def build(mesh: Any) -> Any:
        model = fully_shard(Tied(), mesh=mesh)
        return model, torch.optim.AdamW(model.parameters(), lr=3e-3)

    return trained(loop_of(build))


class Adapted(nn.Module):
    """A layer that is frozen, and two small matrices that are trained in its place (LoRA)."""

    def __init__(self, layer: nn.Linear) -> None:
        super().__init__()
        self.layer = layer.requires_grad_(False)
        self.down = nn.Linear(layer.in_features, 2, bias=False)
        self.up = nn.Linear(2, layer.out_features, bias=False)
        nn.init.zeros_(self.up.weight)

    def forward(self, features: torch.Tensor) -> torch.Tensor:
        return self.layer(features) + self.up(self.down(features))


def adapted(folder: Path) -> Weights:
    def build(mesh: Any) -> Any:
        model = network("mlp")
        for place, layer in enumerate(model):
            if isinstance(layer, nn.Linear):
                model[place] = Adapted(layer)
        cut(model, mesh)
        trains = [one for one in model.parameters() if one.requires_grad]
        return model, torch.optim.AdamW(trains, lr=3e-3)

    return trained(loop_of(build))


def optimizer_before_cutting(folder: Path) -> Weights:
    def build(mesh: Any) -> Any:
        model = network("mlp")
        optimizer = torch.optim.AdamW(model.parameters(), lr=3e-3)
        return cut(model, mesh), optimizer

    return trained(loop_of(build))


def every_fourth(folder: Path) -> Weights:
    loop = loop_of()
    for step in loop:
        step.backward(loss_of)
        if step.number % 4 == 0:
            loop.optimizer.step()
    return whole(loop)


def group_added(folder: Path) -> Weights:
    def build(mesh: Any) -> Any:
        model = network("mlp")
        cut(model, mesh)
        return model, torch.optim.AdamW([*model[3].parameters(), *model[5].parameters()], lr=3e-3)

    loop = loop_of(build)
    for step in each_step(loop):
        if step.number == 5:
            loop.optimizer.add_param_group({"params": list(loop.model[0].parameters())})
    return whole(loop)


def another_optimizer(folder: Path) -> Weights:
    loop = loop_of()
    second = None
    for _ in each_step(loop):
        second = second or torch.optim.SGD(loop.model[0].parameters(), lr=0.1)
        second.step()
    return whole(loop)


def frozen_between_steps(folder: Path) -> Weights:
    loop = loop_of()
    for step in each_step(loop):
        if step.number == 5:
            loop.model[0].requires_grad_(False)
    return whole(loop)


def own_schedule(folder: Path) -> Weights:
    loop = loop_of(check_every=4)
    losses: list[float] = []

    def compute(model: nn.Module, batch: Any) -> torch.Tensor:
        loss = loss_of(model, batch)
        losses.append(loss.item())
        return loss

    for _ in each_step(loop, compute):
        loop.optimizer.param_groups[0]["lr"] = 0.01 * losses[-1]
    return whole(loop)


def changed_before_backward(folder: Path) -> Weights:
    loop = loop_of(check_every=4)
    for step in loop:
        if step.number == 9:
            with torch.no_grad():
                loop.model[3].weight.mul_(0.5)
        step.backward(loss_of)
        loop.optimizer.step()
    return whole(loop)


def one_copy_changed(folder: Path) -> Weights:
    loop = loop_of(check_every=4, shard=1)
    for step in each_step(loop):
        if step.number == 6 and loop.world.rank == 2:
            with torch.no_grad():
                loop.model[3].weight.mul_(1.01)
    return whole(loop)


def one_buffer_changed(folder: Path) -> Weights:
    loop = loop_of(resnet, check_every=4)
    for step in each_step(loop):
        if step.number == 4 and loop.world.rank == 1:
            loop.model[2].norms[0].running_mean.add_(0.1)
    return whole(loop)


def teacher_in_backward(folder: Path) -> Weights:
    taught_by = network("mlp")
    loop = loop_of()

    def compute(model: nn.Module, batch: Any) -> torch.Tensor:
        with torch.no_grad():
            for one in taught_by.parameters():
                one.mul_(0.99)
            wanted = taught_by(batch[0]).softmax(1)
        return functional.cross_entropy(model(batch[0]), wanted)

    return trained(loop, compute)


def own_generator(folder: Path) -> Weights:
    return trained(loop_of(data=OwnNoise(60)))


def own_dropout(folder: Path) -> Weights:
    def build(mesh: Any) -> Any:
        model = network("mlp")
        model[2] = OwnDropout()
        cut(model, mesh)
        return model, torch.optim.AdamW(model.parameters(), lr=3e-3)

    return trained(loop_of(build))


def assigned_buffers(folder: Path) -> Weights:
    def build(mesh: Any) -> Any:
        model = cut(nn.Sequential(Running("assigned"), *network("mlp")), mesh)
        return model, torch.optim.AdamW(model.parameters(), lr=3e-3)

    return trained(loop_of(build, micro_batch=2))


def zeroed_inside(folder: Path) -> Weights:
    loop = loop_of()

    def compute(model: nn.Module, batch: Any) -> torch.Tensor:
        loop.optimizer.zero_grad()
        return loss_of(model, batch)

    return trained(loop, compute)


def forgotten_scheduler(folder: Path) -> Weights:
    loop = loop_of()
    scheduler = None
    for _ in each_step(loop):
        scheduler = scheduler or torch.optim.lr_scheduler.LambdaLR(loop.optimizer, lambda step: 0.9**step)
        scheduler.step()
    return whole(loop)


def divided_by_hand(folder: Path) -> Weights:
    rank, size = int(os.environ["RANK"]), int(os.environ["WORLD_SIZE"])
    return trained(loop_of(data=Subset(Samples(60), range(rank, 60, size))))


def low_precision(folder: Path) -> Weights:
    def build(mesh: Any) -> Any:
        model = network("mlp")
        policy = MixedPrecisionPolicy(param_dtype=torch.bfloat16, reduce_dtype=torch.float32)
        fully_shard(model, mesh=mesh, mp_policy=policy)
        return model, torch.optim.SGD(model.parameters(), lr=0.05)

    def compute(model: nn.Module, batch: Any) -> torch.Tensor:
        return functional.cross_entropy(model(batch[0]).float(), batch[1])

    return trained(loop_of(build), compute)


def one_part_changed(folder: Path) -> Weights:
    loop = loop_of(check_every=4)
    for step in each_step(loop):
        if step.number == 6 and loop.world.rank == 0:
            with torch.no_grad():
                loop.model[3].weight.to_local().mul_(1.5)
    return whole(loop)


# --- the table --------------------------------------------------------------------------------------------------------

CONSTRUCTS = [
    Construct("a model, its optimizer, dropout, augmentation, `clip_grad_norm_`", "exact", plain),
    Construct("BatchNorm", "exact", batch_norm),
    Construct("weights that two layers share (tied)", "exact", tied),
    Construct("low-rank adapters beside layers that `build` freezes (LoRA)", "exact", adapted),
    Construct("groups of parameters, each with its learning rate and weight decay", "exact", decay_groups),
    Construct("layers that `build` freezes", "exact", frozen_in_build),
    Construct(
        "a teacher or an average of the weights inside the model, updated after `optimizer.step()`", "exact",
        teacher_in_the_model,
    ),
    Construct("losses that are not finite, with `nonfinite='skip'`", "exact", skips),
    Construct("the same where a worker without samples of its own keeps the others company", "exact", kept_company),
    Construct("the same with `nonfinite='rollback'`", "exact", goes_back),
    Construct(
        "the same with `nonfinite='stop'`", "refused", stops, "the loss of step 2 is not finite",
    ),
    Construct("buffers that a forward pass replaces, `self.mean = ...`", "exact", assigned_buffers),
    Construct("parameters that are gathered in bfloat16 (`MixedPrecisionPolicy`)", "exact", low_precision),
    Construct("dropout with a generator of its own", "refused", own_dropout, NOT_REPEATED),
    Construct("`zero_grad()` inside the function given to `backward`", "refused", zeroed_inside, IN_THE_FUNCTION),
    Construct(
        "a scheduler that `build` did not return", "refused", forgotten_scheduler,
        "a scheduler that Loop was not given changes the learning rate",
    ),
    Construct(
        "a dataset that the script has divided by rank", "refused", divided_by_hand,
        "rank 1 reads another sample than rank 0 for number",
    ),
    Construct(
        "`SyncBatchNorm`", "refused", synchronized,
        "is a SyncBatchNorm, which meets other workers in the middle of a shard",
    ),
    Construct(
        "an optimizer that is made before `fully_shard`", "refused", optimizer_before_cutting,
        "the optimizer has 6 parameters that are not in the model",
    ),
    Construct(
        "`optimizer.step()` in every n-th step only", "refused", every_fourth,
        "no optimizer has used the gradients of step 1",
    ),
    Construct(
        "`optimizer.add_param_group` after the loop has begun", "refused", group_added,
        "an optimizer got other parameters since Loop was made",
    ),
    Construct(
        "an optimizer that `build` did not return", "refused", another_optimizer,
        "an optimizer that build did not return changes parameters of the model",
    ),
    Construct(
        "parameters frozen or unfrozen between two steps", "refused", frozen_between_steps,
        "0.weight was frozen after build returned",
    ),
    Construct(
        "a learning rate that follows what one worker alone computes", "refused", own_schedule,
        "do not hold the state of rank 0, first in groups.0.lr",
    ),
    Construct(
        "weights that are changed between a step's end and `step.backward`, where no snapshot has them", "refused",
        changed_before_backward, "is not what its snapshot holds, first in 3.weight",
    ),
    Construct(
        "one copy of the model (HSDP) that its rank alone changes", "refused", one_copy_changed,
        "After step 8 rank 2 does not hold the weights of rank 0, first in",
    ),
    Construct(
        "a buffer that one rank alone changes", "refused", one_buffer_changed,
        "After step 4 rank 1 does not hold the state of rank 0, first in buffers.2.norms.0.running_mean",
    ),
    Construct(
        "a teacher that is updated inside the function given to `backward`", "refused", teacher_in_backward,
        "taught_by.0.weight was changed inside step.backward",
    ),
    Construct(
        "a dataset with a length that draws from a generator of its own", "refused", own_generator,
        "the dataset gave two different samples for number",
    ),
    Construct(
        "a rank that changes its own part of the weights alone, without copies", "your responsibility",
        one_part_changed, "no other worker holds this part, so there is nothing to compare it with",
    ),
]  # fmt: skip


def table() -> str:
    """As `docs/elastic-training.md` has it."""
    return table_of(CONSTRUCTS, "construct with `ShardedLoop`")


if __name__ == "__main__":
    print(table())
