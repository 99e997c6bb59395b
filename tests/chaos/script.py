"""The script that is sabotaged: a small network with dropout that writes down what it trains and what comes out.

Each of its processes writes lines of JSON: `tried` with the numbers of the samples before they are used, and `done`
with a digest of all weights after each step.  It ends when the file `finish` is there, or after a given step.
"""

from __future__ import annotations

#: Samples of an epoch, and of a step: the last step of every epoch is uneven.
SAMPLES, BATCH = 95, 20

TRAIN = """
import hashlib, json, os, pathlib, sys, time
import torch
from torch.nn import functional
from remora.torch import Loop

out, pause_s, last = pathlib.Path(sys.argv[1]), float(sys.argv[2]), int(sys.argv[3])
torch.set_num_threads(1)
torch.manual_seed(11)
features = torch.randn(95, 8)
labels = features[:, :4].argmax(1)

class Samples(torch.utils.data.Dataset):
    def __len__(self):
        return len(labels)

    def __getitem__(self, number):
        return features[number] + 0.1 * torch.randn(8), labels[number], number

model = torch.nn.Sequential(
    torch.nn.Linear(8, 16), torch.nn.ReLU(), torch.nn.Dropout(0.3), torch.nn.Linear(16, 4)
)
optimizer = torch.optim.AdamW(model.parameters(), lr=3e-3)
loop = Loop(
    model, optimizer, data=Samples(), global_batch=20, shards=6, seed=7, total_steps=10**6, exactness="bitwise"
)
name = f"{os.environ.get('REMORA_ATTEMPT', '0')}-{os.getpid()}"
record = (out / f"{name}.jsonl").open("a", buffering=1)

def note(kind, **fields):
    group = int(os.environ.get("REMORA_GENERATION", "0"))
    line = {"kind": kind, "at": time.monotonic(), "group": group, "step": step.number, **fields}
    record.write(json.dumps(line) + "\\n")

def compute(model, batch):
    inputs, wanted, numbers = batch
    note("tried", samples=numbers.tolist())
    time.sleep(pause_s)
    return functional.cross_entropy(model(inputs), wanted), {"finish": float((out / "finish").exists())}

def digest():
    weights = b"".join(one.detach().numpy().tobytes() for one in model.parameters())
    return hashlib.sha256(weights).hexdigest()

for step in loop:
    loss = step.backward(compute)
    optimizer.step()
    note("done", digest=digest())
    step.report(loss=loss)
    if step.metrics["finish"] > 0 or step.number == last:
        break
print("ended after step", step.number, flush=True)
"""
