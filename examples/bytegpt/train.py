"""A byte-level GPT of 2.7 million parameters that learns Python from the source text of its own standard library.

`remora submit job.yaml`, or by hand: `python train.py --steps 50`.  The text is what the interpreter came with, so it
is real, has millions of bytes, and needs no download; the last 5 % of its files are held out.  The figure to watch is
bits per byte on the held-out text; 8.0 is no knowledge at all.
"""

from __future__ import annotations

import argparse
import math
import os
import sysconfig
from pathlib import Path

import torch
import torch.distributed as dist
import torch.nn.functional as F
from torch import nn
from torch.nn.parallel import DistributedDataParallel

from remora import training

CONTEXT = 128
GLOBAL_BATCH = 12  # divides evenly among 1, 2, 3, 4, 6 and 12 workers
WIDTH, LAYERS, HEADS = 192, 6, 6
SEED = 11


def load_text(limit: int = 8_000_000) -> tuple[torch.Tensor, torch.Tensor]:
    """Training and held-out bytes of the standard library's sources, in the order of their names."""
    root = Path(sysconfig.get_path("stdlib"))
    files = sorted(p for p in root.glob("**/*.py") if not {"test", "tests", "site-packages"} & set(p.parts))
    held_out = files[19::20]
    kept = [path for path in files if path not in set(held_out)]

    def read(paths: list[Path]) -> torch.Tensor:
        text = b"\n".join(path.read_bytes() for path in paths)[:limit]
        return torch.frombuffer(bytearray(text), dtype=torch.uint8)

    return read(kept), read(held_out)


class Block(nn.Module):
    """Attention and a feed-forward layer, each after a normalisation and around a residual."""

    def __init__(self) -> None:
        super().__init__()
        self.norm1, self.norm2 = nn.LayerNorm(WIDTH), nn.LayerNorm(WIDTH)
        self.qkv, self.out = nn.Linear(WIDTH, 3 * WIDTH), nn.Linear(WIDTH, WIDTH)
        self.feed = nn.Sequential(nn.Linear(WIDTH, 4 * WIDTH), nn.GELU(), nn.Linear(4 * WIDTH, WIDTH))

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        batch, length, _ = x.shape
        q, k, v = self.qkv(self.norm1(x)).view(batch, length, 3, HEADS, -1).permute(2, 0, 3, 1, 4)
        attended = F.scaled_dot_product_attention(q, k, v, is_causal=True)
        x = x + self.out(attended.transpose(1, 2).reshape(batch, length, WIDTH))
        return x + self.feed(self.norm2(x))


class ByteGPT(nn.Module):
    """Predicts the next byte."""

    def __init__(self) -> None:
        super().__init__()
        self.bytes, self.places = nn.Embedding(256, WIDTH), nn.Embedding(CONTEXT, WIDTH)
        self.blocks = nn.Sequential(*(Block() for _ in range(LAYERS)))
        self.norm, self.head = nn.LayerNorm(WIDTH), nn.Linear(WIDTH, 256, bias=False)
        self.head.weight = self.bytes.weight
        self.apply(self._initialise)

    @staticmethod
    def _initialise(module: nn.Module) -> None:
        if isinstance(module, nn.Linear | nn.Embedding):
            nn.init.normal_(module.weight, std=0.02)

    def forward(self, tokens: torch.Tensor) -> torch.Tensor:
        x = self.bytes(tokens) + self.places.weight[: tokens.shape[1]]
        return self.head(self.norm(self.blocks(x)))


def windows(text: torch.Tensor, seed: int, count: int) -> torch.Tensor:
    """`count` random stretches of CONTEXT + 1 bytes, int64 [count, CONTEXT + 1]; the same for the same seed."""
    starts = torch.randint(len(text) - CONTEXT - 1, (count,), generator=torch.Generator().manual_seed(seed))
    return torch.stack([text[start : start + CONTEXT + 1] for start in starts]).long()


def loss_of(model: nn.Module, batch: torch.Tensor) -> torch.Tensor:
    """Mean cross entropy of the next byte, in nats."""
    return F.cross_entropy(model(batch[:, :-1]).flatten(0, 1), batch[:, 1:].flatten())


@torch.no_grad()
def bits_per_byte(model: nn.Module, held_out: torch.Tensor, device: torch.device) -> float:
    """On 32 fixed windows of the held-out text."""
    model.eval()
    bits = loss_of(model, windows(held_out, SEED, 32).to(device)).item() / math.log(2)
    model.train()
    return bits


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--steps", type=int, default=200)
    arguments = parser.parse_args()
    torch.manual_seed(SEED)
    torch.set_num_threads(int(os.environ.get("OMP_NUM_THREADS", "1")))
    world = training.world()
    is_distributed = "MASTER_ADDR" in os.environ
    on_gpu = torch.cuda.is_available()
    device = torch.device(f"cuda:{world.local_rank}" if on_gpu else "cpu")
    if is_distributed:
        dist.init_process_group("nccl" if on_gpu else "gloo")

    text, held_out = load_text()
    model = ByteGPT().to(device)
    wrapped = DistributedDataParallel(model) if is_distributed else model
    optimizer = torch.optim.AdamW(model.parameters(), lr=1e-3, betas=(0.9, 0.95), weight_decay=0.1)
    if world.rank == 0:
        parameters = sum(p.numel() for p in model.parameters())
        print(f"{parameters:,} parameters, {len(text):,} bytes to learn from, {len(held_out):,} held out")

    done = 0
    saved = training.resume_from()
    if saved is not None:
        state = torch.load(saved / "state.pt", map_location=device, weights_only=True)
        model.load_state_dict(state["model"])
        optimizer.load_state_dict(state["optimizer"])
        done = state["step"]

    for step in range(done + 1, arguments.steps + 1):
        for group in optimizer.param_groups:
            group["lr"] = 1e-3 * min(1.0, step / 20) * (0.1 + 0.9 * (1 - step / arguments.steps))
        batch = windows(text, SEED * 1_000_003 + step, GLOBAL_BATCH)[world.rank :: world.world_size].to(
            device
        )
        loss = loss_of(wrapped, batch)
        optimizer.zero_grad()
        loss.backward()
        nn.utils.clip_grad_norm_(model.parameters(), 1.0)
        optimizer.step()

        is_last = step == arguments.steps
        metrics = {"loss": loss.item()}
        if world.rank == 0 and (is_last or step % 25 == 0):
            metrics["bits_per_byte"] = bits_per_byte(model, held_out, device)
            print(f"step {step}: loss {metrics['loss']:.3f}, {metrics['bits_per_byte']:.3f} bits per byte")
        training.report(step, metrics, total_steps=arguments.steps)
        if training.should_checkpoint() or is_last:
            with training.checkpoint(step) as folder:
                if world.rank == 0:
                    state = {"model": model.state_dict(), "optimizer": optimizer.state_dict(), "step": step}
                    torch.save(state, folder / "state.pt")
    if is_distributed:
        # Before the group: if DDP is the last to hold it, PyTorch may wait for itself at the end (gloo).
        del wrapped
        dist.destroy_process_group()


if __name__ == "__main__":
    main()
