"""Scripts with `Loop` as people bring them along, one construct each; `constructs.py` has the others."""

from __future__ import annotations

import os
from pathlib import Path
from typing import Any

import numpy as np
import torch
from torch import nn
from torch.nn import functional
from torch.nn.utils import parametrizations, prune
from torch.utils.data import DataLoader, Subset

from tests.golden.constructs import (
    Construct,
    adam,
    each_step,
    loop_of,
    loss_of,
    run,
    table_of,
)
from tests.golden.subjects import CLASSES, FEATURES, Samples, Stream, network

# --- several networks, several backward passes ------------------------------------------------------------------------


class Game(nn.Module):
    """A generator and a network that distinguishes its samples from real ones."""

    def __init__(self) -> None:
        super().__init__()
        torch.manual_seed(11)
        self.makes = nn.Sequential(nn.Linear(4, 16), nn.ReLU(), nn.Linear(16, FEATURES))
        self.judges = nn.Sequential(nn.Linear(FEATURES, 16), nn.ReLU(), nn.Linear(16, 1))

    def made(self, count: int) -> torch.Tensor:
        return self.makes(torch.randn(count, 4))


def judged(game: nn.Module, batch: Any) -> torch.Tensor:
    scores = torch.cat([game.judges(batch[0]), game.judges(game.made(len(batch[0])).detach())])
    wanted = torch.cat([torch.ones(len(batch[0]), 1), torch.zeros(len(batch[0]), 1)])
    return functional.binary_cross_entropy_with_logits(scores, wanted)


def deceived(game: nn.Module, batch: Any) -> torch.Tensor:
    scores = game.judges(game.made(len(batch[0])))
    return functional.binary_cross_entropy_with_logits(scores, torch.ones_like(scores))


def adversaries(folder: Path) -> nn.Module:
    game = Game()
    maker, judge = adam(game.makes), adam(game.judges)
    for step in loop_of(game, [maker, judge]):
        if step.number % 2:
            step.backward(judged)
            judge.step()
        else:
            step.backward(deceived)
            maker.step()
    return game


def gradient_penalty(folder: Path) -> nn.Module:
    def compute(game: nn.Module, batch: Any) -> torch.Tensor:
        between = torch.lerp(batch[0], game.made(len(batch[0])).detach(), torch.rand(len(batch[0]), 1))
        between.requires_grad_(True)
        (slope,) = torch.autograd.grad(game.judges(between).sum(), between, create_graph=True)
        return judged(game, batch) + (slope.norm(dim=1) - 1.0).square().mean()

    game = Game()
    judge = adam(game.judges)
    run(loop_of(game, judge), judge, compute=compute)
    return game


def backward_inside(folder: Path) -> nn.Module:
    def compute(game: nn.Module, batch: Any) -> torch.Tensor:
        judged(game, batch).backward()
        return deceived(game, batch)

    game = Game()
    both = adam(game)
    run(loop_of(game, both), both, compute=compute)
    return game


def backward_twice(folder: Path) -> nn.Module:
    game = Game()
    maker, judge = adam(game.makes), adam(game.judges)
    for step in loop_of(game, [maker, judge]):
        step.backward(judged)
        judge.step()
        step.backward(deceived)
        maker.step()
    return game


def zeroed_inside(folder: Path) -> nn.Module:
    model = network("mlp")
    optimizer = adam(model)

    def compute(model: nn.Module, batch: Any) -> torch.Tensor:
        optimizer.zero_grad()
        return loss_of(model, batch)

    run(loop_of(model, optimizer, exactness="sample-exact"), optimizer, compute=compute)
    return model


def trained_elsewhere(folder: Path) -> nn.Module:
    model, head = network("mlp"), nn.Linear(CLASSES, CLASSES)
    optimizer, second = adam(model), torch.optim.SGD(head.parameters(), lr=0.1)

    def compute(model: nn.Module, batch: Any) -> torch.Tensor:
        return functional.cross_entropy(head(model(batch[0])), batch[1])

    for _ in each_step(loop_of(model, optimizer), optimizer, compute=compute):
        second.step()
        second.zero_grad()
    return nn.ModuleList([model, head])


def closure(folder: Path) -> nn.Module:
    model = network("mlp")
    optimizer = torch.optim.LBFGS(model.parameters(), max_iter=4)
    for step in loop_of(model, optimizer):
        optimizer.step(lambda step=step: step.backward(loss_of))
    return model


def one_evaluation(folder: Path) -> nn.Module:
    model = network("mlp")
    optimizer = torch.optim.LBFGS(model.parameters(), lr=0.05, max_iter=1)
    for step in loop_of(model, optimizer):
        loss = step.backward(loss_of)
        optimizer.step(lambda loss=loss: loss)
    return model


# --- weights that are more than parameters of layers ------------------------------------------------------------------


def called_functionally(folder: Path) -> nn.Module:
    def compute(model: nn.Module, batch: Any) -> torch.Tensor:
        shrunk = {name: one * 0.99 for name, one in model.named_parameters()}
        return functional.cross_entropy(torch.func.functional_call(model, shrunk, (batch[0],)), batch[1])

    model = network("mlp")
    optimizer = adam(model)
    run(loop_of(model, optimizer), optimizer, compute=compute)
    return model


def called_with_copies(folder: Path) -> nn.Module:
    model = network("mlp")
    optimizer = adam(model)
    copies = {name: one.detach().clone().requires_grad_() for name, one in model.named_parameters()}

    def compute(model: nn.Module, batch: Any) -> torch.Tensor:
        return functional.cross_entropy(torch.func.functional_call(model, copies, (batch[0],)), batch[1])

    run(loop_of(model, optimizer), optimizer, compute=compute)
    return model


def parametrized(folder: Path) -> nn.Module:
    model = network("mlp")
    parametrizations.weight_norm(model[0])
    parametrizations.spectral_norm(model[3])
    parametrizations.orthogonal(model[5])
    optimizer = adam(model)
    run(loop_of(model, optimizer, micro_batch=2), optimizer)
    return model


def parametrized_later(folder: Path) -> nn.Module:
    model = network("mlp")
    optimizer = adam(model)
    loop = loop_of(model, optimizer, check_every=4)
    parametrizations.weight_norm(model[0])
    run(loop, optimizer)
    return model


def pruned(folder: Path) -> nn.Module:
    model = network("mlp")
    optimizer = adam(model)
    for step in each_step(loop_of(model, optimizer, check_every=4), optimizer):
        if step.number == 5:
            prune.l1_unstructured(model[3], "weight", amount=0.3)
    return model


def new_head(folder: Path) -> nn.Module:
    model = network("mlp")
    optimizer = adam(model)
    for step in each_step(loop_of(model, optimizer, check_every=4), optimizer):
        if step.number == 5:
            torch.manual_seed(os.getpid())
            model[5] = nn.Linear(32, CLASSES)
    return model


class Words(nn.Module):
    """Numbers of samples as words."""

    def __init__(self, *, sparse: bool) -> None:
        super().__init__()
        torch.manual_seed(11)
        self.table = nn.Embedding(60, 8, sparse=sparse)
        self.head = nn.Linear(8, CLASSES)

    def forward(self, numbers: torch.Tensor) -> torch.Tensor:
        return self.head(self.table(numbers))


def sparse_gradients(folder: Path) -> nn.Module:
    model = Words(sparse=True)
    optimizers = [torch.optim.SparseAdam(model.table.parameters()), adam(model.head)]

    def compute(model: nn.Module, batch: Any) -> torch.Tensor:
        return functional.cross_entropy(model(batch[2]), batch[1])

    run(loop_of(model, optimizers), *optimizers, compute=compute)
    return model


def own_initial_weights(folder: Path) -> nn.Module:
    model = network("mlp")
    torch.manual_seed(int(os.environ["RANK"]))
    model[3].reset_parameters()
    optimizer = adam(model)
    run(loop_of(model, optimizer), optimizer)
    return model


def low_precision(folder: Path) -> nn.Module:
    def compute(model: nn.Module, batch: Any) -> torch.Tensor:
        with torch.autocast("cpu", torch.bfloat16):
            return loss_of(model, batch)

    model = network("transformer")
    optimizer = adam(model)
    run(loop_of(model, optimizer), optimizer, compute=compute)
    return model


def weights_in_bfloat16(folder: Path) -> nn.Module:
    model = network("mlp").to(torch.bfloat16)
    optimizer = adam(model)

    def compute(model: nn.Module, batch: Any) -> torch.Tensor:
        return functional.cross_entropy(model(batch[0].to(torch.bfloat16)).float(), batch[1])

    run(loop_of(model, optimizer), optimizer, compute=compute)
    return model


def fused(folder: Path) -> nn.Module:
    model = network("mlp")
    first = torch.optim.AdamW(model[0].parameters(), lr=3e-3, fused=True)
    second = torch.optim.SGD(model[3].parameters(), lr=0.05, momentum=0.9, foreach=True)
    third = torch.optim.Muon([model[5].weight], lr=0.02)
    run(loop_of(model, [first, second, third]), first, second, third)
    return model


# --- hooks ------------------------------------------------------------------------------------------------------------


def clipped_by_hooks(folder: Path) -> nn.Module:
    model = network("mlp")
    for one in model.parameters():
        one.register_hook(lambda gradient: gradient.clamp(-1e-3, 1e-3))
    model[3].register_full_backward_hook(lambda module, inward, outward: (inward[0] * 0.9,))
    optimizer = adam(model)
    run(loop_of(model, optimizer, micro_batch=2), optimizer)
    return model


def clip(summed: torch.Tensor) -> None:
    assert summed.grad is not None
    summed.grad.clamp_(-1e-3, 1e-3)


def clipped_when_summed(folder: Path) -> nn.Module:
    model = network("mlp")
    optimizer = adam(model)
    loop = loop_of(model, optimizer, exactness="sample-exact")
    for one in model.parameters():
        one.register_post_accumulate_grad_hook(clip)
    run(loop, optimizer)
    return model


# --- what lasts from one batch to the next ----------------------------------------------------------------------------


class Running(nn.Module):
    """Keeps a mean of what it saw, as hand-written normalizations do."""

    def __init__(self, kind: str) -> None:
        super().__init__()
        self.kind = kind
        width = 20_000 if kind == "large" else FEATURES
        self.register_buffer("mean", torch.zeros(width))
        self.register_buffer("seen", torch.zeros((), dtype=torch.int64))

    def forward(self, features: torch.Tensor) -> torch.Tensor:
        if self.training:
            found = features.detach().mean(0)
            if self.kind == "assigned":
                self.mean = 0.9 * self.mean + 0.1 * found
                self.seen = self.seen + 1
            else:
                self.mean.data[:FEATURES].lerp_(found, 0.1)
        return features - self.mean[:FEATURES]


def with_running(kind: str) -> nn.Module:
    model = nn.Sequential(Running(kind), *network("mlp"))
    optimizer = adam(model)
    run(loop_of(model, optimizer, micro_batch=2), optimizer)
    return model


def assigned_buffers(folder: Path) -> nn.Module:
    return with_running("assigned")


def large_buffers(folder: Path) -> nn.Module:
    return with_running("large")


def instance_norm(folder: Path) -> nn.Module:
    model = nn.Sequential(
        nn.Unflatten(1, (3, 4)),
        nn.InstanceNorm1d(3, affine=True, track_running_stats=True),
        nn.BatchNorm1d(3, momentum=None),
        nn.Flatten(),
        *network("mlp"),
    )
    optimizer = adam(model)
    run(loop_of(model, optimizer, micro_batch=2), optimizer)
    return model


def buffer_of_one_rank(folder: Path) -> nn.Module:
    model = nn.Sequential(nn.BatchNorm1d(FEATURES), *network("mlp"))
    model[0].eval()
    optimizer = adam(model)
    loop = loop_of(model, optimizer, check_every=4)
    for step in each_step(loop, optimizer):
        if step.number == 3 and loop.world.rank == 1:
            model[0].running_mean += 0.1
    return model


class OwnDropout(nn.Module):
    """Dropout with a generator of its own."""

    def __init__(self) -> None:
        super().__init__()
        self.generator = torch.Generator().manual_seed(3)

    def forward(self, features: torch.Tensor) -> torch.Tensor:
        keep = torch.rand(features.shape, generator=self.generator) > 0.3
        return features * keep / 0.7


def own_dropout(folder: Path) -> nn.Module:
    model = network("mlp")
    model[2] = OwnDropout()
    optimizer = adam(model)
    run(loop_of(model, optimizer), optimizer)
    return model


def own_noise_in_the_function(folder: Path) -> nn.Module:
    model = network("mlp")
    optimizer = adam(model)
    generator = np.random.default_rng(3)

    def compute(model: nn.Module, batch: Any) -> torch.Tensor:
        noise = torch.from_numpy(generator.normal(size=batch[0].shape)).float()
        return functional.cross_entropy(model(batch[0] + 0.1 * noise), batch[1])

    run(loop_of(model, optimizer), optimizer, compute=compute)
    return model


class Annealed(nn.Module):
    """Cools down with each batch, in an attribute."""

    def __init__(self) -> None:
        super().__init__()
        self.temperature = 2.0

    def forward(self, scores: torch.Tensor) -> torch.Tensor:
        self.temperature *= 0.99
        return scores / self.temperature


def annealed(folder: Path) -> nn.Module:
    model = nn.Sequential(*network("mlp"), Annealed())
    optimizer = adam(model)
    run(loop_of(model, optimizer), optimizer)
    return model


class Recurrent(nn.Module):
    """Reads the features as a sequence."""

    def __init__(self) -> None:
        super().__init__()
        torch.manual_seed(11)
        self.cell, self.head = nn.GRU(3, 8, batch_first=True), nn.Linear(8, CLASSES)
        self.register_buffer("carried", torch.zeros(1, 1, 8))

    def forward(self, features: torch.Tensor, hidden: torch.Tensor) -> Any:
        start = hidden.expand(1, len(features), 8).contiguous()
        found, end = self.cell(features.view(len(features), 4, 3), start)
        return self.head(found[:, -1]), end.detach().mean(1, keepdim=True)


def carried_hidden(folder: Path) -> nn.Module:
    model = Recurrent()
    optimizer = adam(model)
    hidden = torch.zeros(1, 1, 8)

    def compute(model: nn.Module, batch: Any) -> torch.Tensor:
        nonlocal hidden
        scores, hidden = model(batch[0], hidden)
        return functional.cross_entropy(scores, batch[1])

    run(loop_of(model, optimizer), optimizer, compute=compute)
    return model


def carried_in_a_buffer(folder: Path) -> nn.Module:
    model = Recurrent()
    optimizer = adam(model)

    def compute(model: nn.Module, batch: Any) -> torch.Tensor:
        scores, model.carried = model(batch[0], model.carried)
        return functional.cross_entropy(scores, batch[1])

    run(loop_of(model, optimizer), optimizer, compute=compute)
    return model


def logs_losses(folder: Path) -> nn.Module:
    model = network("mlp")
    optimizer = adam(model)
    losses: list[float] = []

    def compute(model: nn.Module, batch: Any) -> torch.Tensor:
        loss = loss_of(model, batch)
        losses.append(loss.item())
        return loss

    run(loop_of(model, optimizer), optimizer, compute=compute)
    return model


def changes_after_calls(folder: Path) -> nn.Module:
    model = network("mlp")
    optimizer = adam(model)
    calls: list[int] = []

    def compute(model: nn.Module, batch: Any) -> torch.Tensor:
        calls.append(1)
        return loss_of(model, batch) * (1.0 if len(calls) < 40 else 0.5)

    run(loop_of(model, optimizer), optimizer, compute=compute)
    return model


# --- data -------------------------------------------------------------------------------------------------------------


def contrastive(folder: Path) -> nn.Module:
    model = network("mlp")
    optimizer = adam(model)

    def compute(model: nn.Module, batch: Any) -> torch.Tensor:
        one, other = (functional.normalize(model(batch[0]), dim=1) for _ in range(2))
        return functional.cross_entropy(one @ other.T / 0.1, torch.arange(len(one)))

    run(loop_of(model, optimizer, shards=3, global_batch=24), optimizer, compute=compute)
    return model


def uneven(folder: Path) -> nn.Module:
    model = network("mlp")
    optimizer = adam(model)
    run(loop_of(model, optimizer, data=Samples(47), micro_batch=3), optimizer)
    return model


def mixed_up(items: list[Any]) -> Any:
    """Mixup with the random numbers of numpy."""
    features, labels, numbers = torch.utils.data.default_collate(items)
    share = float(np.random.beta(0.4, 0.4))
    return share * features + (1.0 - share) * features[torch.randperm(len(features))], labels, numbers


def random_collate(folder: Path) -> nn.Module:
    model = network("mlp")
    optimizer = adam(model)
    run(loop_of(model, optimizer, collate_fn=mixed_up), optimizer)
    return model


class OwnCollate:
    """Noise on each batch, from a generator of its own."""

    def __init__(self) -> None:
        self.generator = np.random.default_rng(5)

    def __call__(self, items: list[Any]) -> Any:
        features, labels, numbers = torch.utils.data.default_collate(items)
        return features + 0.1 * float(self.generator.normal()), labels, numbers


def own_collate(folder: Path) -> nn.Module:
    model = network("mlp")
    optimizer = adam(model)
    run(loop_of(model, optimizer, collate_fn=OwnCollate()), optimizer)
    return model


def own_collate_of_a_stream(folder: Path) -> nn.Module:
    model = network("mlp")
    optimizer = adam(model)
    run(loop_of(model, optimizer, data=Stream(60), collate_fn=OwnCollate()), optimizer)
    return model


class Curriculum(Samples):
    """Noise that grows with the epoch."""

    def __init__(self, size: int) -> None:
        super().__init__(size)
        self.epoch = 0

    def set_epoch(self, epoch: int) -> None:
        self.epoch = epoch

    def __getitem__(self, number: int) -> tuple[torch.Tensor, torch.Tensor, int]:
        features, label, number = super().__getitem__(number)
        return features + self.epoch * torch.randn(FEATURES), label, number


def curriculum(folder: Path) -> nn.Module:
    model = network("mlp")
    optimizer = adam(model)
    data = Curriculum(60)
    run(loop_of(model, optimizer, data=data), optimizer)
    assert data.epoch == 3, "it heard of the last epoch"
    return model


class Growing(Samples):
    """A part of its samples at first."""

    visible = 20

    def __len__(self) -> int:
        return self.visible


def growing(folder: Path) -> nn.Module:
    model = network("mlp")
    optimizer = adam(model)
    data = Growing(60)
    for step in each_step(loop_of(model, optimizer, data=data), optimizer):
        data.visible = min(60, 20 + 10 * step.epoch)
    return model


def divided_by_hand(folder: Path) -> nn.Module:
    model = network("mlp")
    optimizer = adam(model)
    rank, size = int(os.environ["RANK"]), int(os.environ["WORLD_SIZE"])
    run(loop_of(model, optimizer, data=Subset(Samples(60), range(rank, 60, size))), optimizer)
    return model


# --- schedules, averages, ends ----------------------------------------------------------------------------------------


def warmed_up(folder: Path) -> nn.Module:
    model = network("mlp")
    optimizer = adam(model)
    scheduler = torch.optim.lr_scheduler.SequentialLR(
        optimizer,
        [
            torch.optim.lr_scheduler.LambdaLR(optimizer, lambda step: (step + 1) / 5),
            torch.optim.lr_scheduler.CosineAnnealingLR(optimizer, 7),
        ],
        [5],
    )
    for _ in each_step(loop_of(model, optimizer, scheduler=scheduler), optimizer):
        scheduler.step()
    return model


def forgotten_scheduler(folder: Path) -> nn.Module:
    model = network("mlp")
    optimizer = adam(model)
    scheduler = torch.optim.lr_scheduler.LambdaLR(optimizer, lambda step: (step + 1) / 5)
    for _ in each_step(loop_of(model, optimizer), optimizer):
        scheduler.step()
    return model


def list_of_schedulers(folder: Path) -> nn.Module:
    model = network("mlp")
    first, second = adam(model[0]), adam(model[3])
    schedulers = [torch.optim.lr_scheduler.LambdaLR(one, lambda step: 0.9**step) for one in (first, second)]
    for _ in each_step(loop_of(model, [first, second], scheduler=schedulers), first, second):
        for one in schedulers:
            one.step()
    return model


def averaged_and_renormalized(folder: Path) -> nn.Module:
    model = nn.Sequential(nn.BatchNorm1d(FEATURES), *network("mlp"))
    optimizer = torch.optim.SGD(model.parameters(), lr=0.05)
    average = torch.optim.swa_utils.AveragedModel(model)
    scheduler = torch.optim.swa_utils.SWALR(optimizer, swa_lr=0.01, anneal_epochs=4)
    loop = loop_of(model, optimizer, scheduler=scheduler, state={"average": average})
    for step in each_step(loop, optimizer):
        scheduler.step()
        if step.number > 6:
            average.update_parameters(model)
    loader = DataLoader(Samples(60), batch_size=20, shuffle=True)
    torch.optim.swa_utils.update_bn(loader, average)
    return average


def validated(model: nn.Module) -> float:
    held_out = Samples(30)
    model.eval()
    with torch.no_grad():
        found = functional.cross_entropy(model(held_out.features), held_out.labels).item()
    model.train()
    return found


def stops_early(folder: Path) -> nn.Module:
    model = network("mlp")
    optimizer = adam(model)
    best, patience = float("inf"), 0
    for step in loop_of(model, optimizer, total_steps=100):
        step.backward(loss_of)
        optimizer.step()
        found = validated(model)
        patience = 0 if found < best - 0.03 else patience + 1
        best = min(best, found)
        if patience == 2:
            break
    return model


# --- the table --------------------------------------------------------------------------------------------------------

IN_THE_FUNCTION = "the function given to backward changes gradients itself"
NOT_REPEATED = (
    "for one micro-batch with the same random numbers, so it keeps something from one call to the next"
)
REPLACED = "is not the parameter that it was when Loop was made"

CONSTRUCTS = [
    Construct("two networks against each other (GAN) in one model, whose optimizers alternate", "exact", adversaries),
    Construct("a penalty on gradients with `torch.autograd.grad`", "exact", gradient_penalty),
    Construct("`optimizer.step(closure)` whose closure returns the loss of `step.backward`", "exact", one_evaluation),
    Construct("`torch.func.functional_call` with weights made from the model's", "exact", called_functionally),
    Construct("weight, spectral and orthogonal normalization (`parametrizations`)", "exact", parametrized),
    Construct("weights that each worker initialises by itself", "exact", own_initial_weights, "those of rank 0 count"),
    Construct("autocast to bfloat16", "exact", low_precision),
    Construct("weights in bfloat16", "exact", weights_in_bfloat16),
    Construct("optimizers that are `fused`, `foreach`, or `Muon`", "exact", fused),
    Construct(
        "hooks that clip or scale gradients (`register_hook`, `register_full_backward_hook`)", "exact",
        clipped_by_hooks, "they see each micro-batch's share of the mean",
    ),
    Construct("buffers that a forward pass replaces, `self.mean = ...`", "exact", assigned_buffers),
    Construct("large buffers that it changes through `.data`", "exact", large_buffers),
    Construct("InstanceNorm with running statistics, BatchNorm with `momentum=None`", "exact", instance_norm),
    Construct(
        "a hidden state that is carried from batch to batch, in a buffer", "exact", carried_in_a_buffer,
        "every shard begins with what shard 0 left",
    ),
    Construct("a function for `backward` that writes down what it saw", "exact", logs_losses),
    Construct(
        "losses over pairs of a batch (contrastive)", "exact", contrastive,
        "pairs are those of a micro-batch, so `shards` and `micro_batch` say how many there are",
    ),
    Construct("batches of unlike size, in micro-batches", "exact", uneven),
    Construct("mixup in `collate_fn` with random numbers of torch, `random` or numpy", "exact", random_collate),
    Construct("a dataset that follows `set_epoch(epoch)` (curriculum)", "exact", curriculum),
    Construct("warm-up and a schedule after it (`LambdaLR`, `SequentialLR`)", "exact", warmed_up),
    Construct("SWA with `SWALR`, and `update_bn` after the loop", "exact", averaged_and_renormalized),
    Construct("early stopping by what all workers compute alike", "exact", stops_early),
    Construct("`backward()` inside the function given to `backward`", "refused", backward_inside, IN_THE_FUNCTION),
    Construct("`zero_grad()` inside it", "refused", zeroed_inside, IN_THE_FUNCTION),
    Construct(
        "two calls of `step.backward` in a step", "refused", backward_twice, "backward is called once per step",
    ),
    Construct("LBFGS whose closure calls `step.backward`", "refused", closure, "backward is called once per step"),
    Construct(
        "a head beside the model, with an optimizer of its own", "refused", trained_elsewhere,
        "step.backward gives gradients to parameters that are not in the model",
    ),
    Construct(
        "`functional_call` with copies of the parameters", "refused", called_with_copies,
        "no parameter of the model got a gradient",
    ),
    Construct("a parametrization after `Loop`", "refused", parametrized_later, REPLACED),
    Construct("pruning while training runs", "refused", pruned, REPLACED),
    Construct("a layer that is replaced while training runs", "refused", new_head, REPLACED),
    Construct(
        "embeddings with `sparse=True`", "refused", sparse_gradients,
        "a parameter of shape (60, 8) has sparse gradients",
    ),
    Construct(
        "`register_post_accumulate_grad_hook`", "refused", clipped_when_summed,
        "a hook of register_post_accumulate_grad_hook sees what one worker alone has summed",
    ),
    Construct(
        "a frozen BatchNorm whose statistics one rank alone changes", "refused", buffer_of_one_rank,
        "After step 4 rank 1 does not hold the weights of rank 0, first in 0.running_mean",
    ),
    Construct("dropout with a generator of its own", "refused", own_dropout, NOT_REPEATED),
    Construct("noise from a generator of numpy in the function", "refused", own_noise_in_the_function, NOT_REPEATED),
    Construct("a temperature in an attribute that each forward pass lowers", "refused", annealed, NOT_REPEATED),
    Construct("a hidden state that the function keeps in a variable", "refused", carried_hidden, NOT_REPEATED),
    Construct(
        "a `collate_fn` with a generator of its own", "refused", own_collate,
        "collate_fn made two different batches of the same samples",
    ),
    Construct(
        "the same with an iterable dataset", "refused", own_collate_of_a_stream,
        "collate_fn made two different batches of the same samples",
    ),
    Construct(
        "a dataset whose length changes", "refused", growing, "the dataset had 20 samples and has 30 now",
    ),
    Construct(
        "a dataset that the script has divided by rank", "refused", divided_by_hand,
        "rank 1 reads another sample than rank 0 for number",
    ),
    Construct(
        "a scheduler that `Loop` was not given", "refused", forgotten_scheduler,
        "a scheduler that Loop was not given changes the learning rate",
    ),
    Construct(
        "a list of schedulers", "refused", list_of_schedulers,
        "hand over one scheduler as scheduler=..., and further ones in state={'second': ...}",
    ),
    Construct(
        "a function that does something else after a number of calls", "your responsibility", changes_after_calls,
        "what it keeps is found only where it shows in the step after the first, or after every tenth comparison",
    ),
]  # fmt: skip


def table() -> str:
    """As `docs/elastic-training.md` has it."""
    return table_of(CONSTRUCTS, "construct that people bring along")


if __name__ == "__main__":
    print(table())
