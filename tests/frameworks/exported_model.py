"""A small GPT-2 that `Loop` trains is exported, and loaded by what its users have: transformers and safetensors."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import torch
from safetensors.torch import load_file, load_model
from transformers import AutoConfig, AutoModelForCausalLM

from remora.export_formats import ExportFormat
from remora.torch import Loop
from remora.torch.exporting import export_checkpoint
from tests.frameworks.trainer_worker import VOCABULARY, model_of


def exported(out: Path) -> dict[str, Any]:
    """Facts about a model that was trained for two steps, and what was loaded of its exports."""
    torch.manual_seed(5)
    model = trained(out)
    weights = model.state_dict()
    model.config.save_pretrained(out / "config")
    facts: dict[str, Any] = {}
    for name, most in {"whole": 5 * 10**9, "cut": 5_000}.items():
        folder = out / name
        folder.mkdir()
        found = export_checkpoint(
            out / "saved", folder, ExportFormat.HUGGINGFACE, max_shard_bytes=most, config=out / "config"
        )
        loaded = AutoModelForCausalLM.from_pretrained(folder)
        facts[name] = {
            "files": sorted(found.files),
            "is_tied": loaded.lm_head.weight is loaded.transformer.wte.weight,
            "differ": differing(loaded.state_dict(), weights),
        }
    file = out / "whole" / "model.safetensors"
    facts["load_file"] = differing(
        load_file(file), {n: w for n, w in weights.items() if n != "lm_head.weight"}
    )
    other = AutoModelForCausalLM.from_config(AutoConfig.from_pretrained(out / "config"))
    load_model(other, file)
    facts["load_model"] = differing(other.state_dict(), weights)
    return facts


def trained(out: Path) -> Any:
    """The model; its checkpoint is in the folder `saved`."""
    model = model_of(0.0)
    optimizer = torch.optim.AdamW(model.parameters(), lr=1e-3)
    data = torch.randint(VOCABULARY, (16, 8))
    loop = Loop(model, optimizer, data=data, global_batch=8, shards=2, total_steps=2)
    for step in loop:
        step.backward(lambda model, batch: model(input_ids=batch, labels=batch).loss)
        optimizer.step()
    (out / "saved").mkdir()
    loop.save(out / "saved")
    return model


def differing(found: dict[str, torch.Tensor], expected: dict[str, torch.Tensor]) -> list[str]:
    """Names of tensors that are not the same."""
    return [
        name
        for name in sorted({*found, *expected})
        if name not in found or name not in expected or not torch.equal(found[name], expected[name])
    ]
