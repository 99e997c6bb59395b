"""What is trained: three small networks, and data that follow from the number of a sample."""

from __future__ import annotations

import random
from collections.abc import Iterator

import torch
from torch import nn
from torch.utils.data import Dataset, IterableDataset

CLASSES = 5
FEATURES = 12


class Residual(nn.Module):
    """Two convolutions with BatchNorm around a shortcut."""

    def __init__(self, width: int) -> None:
        super().__init__()
        self.first, self.second = (nn.Conv2d(width, width, 3, padding=1, bias=False) for _ in range(2))
        self.norms = nn.ModuleList([nn.BatchNorm2d(width), nn.BatchNorm2d(width)])

    def forward(self, images: torch.Tensor) -> torch.Tensor:
        inner = torch.relu(self.norms[0](self.first(images)))
        return torch.relu(images + self.norms[1](self.second(inner)))


class Transformer(nn.Module):
    """One layer with dropout over the features as a sequence."""

    def __init__(self) -> None:
        super().__init__()
        self.embed = nn.Linear(2, 16)
        layer = nn.TransformerEncoderLayer(16, 2, 32, dropout=0.2, batch_first=True)
        self.layer, self.head = layer, nn.Linear(16, CLASSES)

    def forward(self, features: torch.Tensor) -> torch.Tensor:
        return self.head(self.layer(self.embed(features.view(len(features), -1, 2))).mean(1))


def network(name: str) -> nn.Module:
    """A freshly initialised network of that name."""
    torch.manual_seed(11)
    if name == "mlp":
        return nn.Sequential(
            nn.Linear(FEATURES, 32),
            nn.ReLU(),
            nn.Dropout(0.3),
            nn.Linear(32, 32),
            nn.ReLU(),
            nn.Linear(32, CLASSES),
        )
    if name == "plain":
        return nn.Sequential(
            nn.Linear(FEATURES, 32), nn.ReLU(), nn.Linear(32, 32), nn.ReLU(), nn.Linear(32, CLASSES + 1)
        )
    if name == "resnet":
        return nn.Sequential(
            nn.Unflatten(1, (1, 3, 4)),
            nn.Conv2d(1, 6, 3, padding=1),
            Residual(6),
            nn.Flatten(),
            nn.Linear(72, CLASSES),
        )
    return Transformer()


class Samples(Dataset):
    """Samples with noise added when they are read, as augmentations do."""

    def __init__(self, size: int) -> None:
        generator = torch.Generator().manual_seed(5)
        self.features = torch.randn(size, FEATURES, generator=generator)
        self.labels = self.features[:, :CLASSES].argmax(1)

    def __len__(self) -> int:
        return len(self.labels)

    def __getitem__(self, number: int) -> tuple[torch.Tensor, torch.Tensor, int]:
        noise = torch.randn(FEATURES) * 0.1 + random.random() * 0.05
        return self.features[number] + noise, self.labels[number], number


class Stream(IterableDataset):
    """The same without a length."""

    def __init__(self, size: int) -> None:
        self.samples = Samples(size)

    def __iter__(self) -> Iterator[tuple[torch.Tensor, torch.Tensor, int]]:
        return (self.samples[number] for number in range(len(self.samples)))


class PlacedStream(Stream):
    """The same, of every `count`-th sample from `index` on, with its place in a state that its iterators share."""

    def __init__(self, size: int, index: int = 0, count: int = 1) -> None:
        super().__init__(size)
        self.numbers = range(index, size, count)
        self.place = 0
        #: Samples that were read in this process.
        self.reads = 0

    def __iter__(self) -> Iterator[tuple[torch.Tensor, torch.Tensor, int]]:
        while self.place < len(self.numbers):
            self.place += 1
            self.reads += 1
            yield self.samples[self.numbers[self.place - 1]]
        self.place = 0

    def state_dict(self) -> dict[str, int]:
        return {"place": self.place}

    def load_state_dict(self, state: dict[str, int]) -> None:
        self.place = state["place"]


class Parts:
    """Makes the streams of a `ShardedStream`, and knows how much each has read."""

    def __init__(self, size: int) -> None:
        self.size = size
        self.made: list[tuple[int, PlacedStream]] = []

    def __call__(self, index: int, count: int) -> PlacedStream:
        self.made.append((index, PlacedStream(self.size, index, count)))
        return self.made[-1][1]
