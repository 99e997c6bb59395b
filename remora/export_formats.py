"""What checkpoints are exported to, and which files of a job describe a model for `from_pretrained`.  Pure."""

from __future__ import annotations

from collections.abc import Iterable
from enum import StrEnum
from pathlib import PurePosixPath

#: Bytes of a file of weights, as `save_pretrained` of transformers splits them.
DEFAULT_SHARD_BYTES = 5 * 10**9
#: The file that `from_pretrained` needs beside the weights.
CONFIG = "config.json"
#: Files that it reads beside the weights: of models, tokenizers and processors.
CONFIG_FILES = frozenset(
    {
        CONFIG, "generation_config.json", "tokenizer.json", "tokenizer_config.json", "special_tokens_map.json",
        "added_tokens.json", "vocab.json", "vocab.txt", "merges.txt", "tokenizer.model", "spiece.model",
        "sentencepiece.bpe.model", "chat_template.jinja", "chat_template.json", "preprocessor_config.json",
        "processor_config.json", "video_preprocessor_config.json", "feature_extractor_config.json",
    }
)  # fmt: skip


class ExportFormat(StrEnum):
    """What `remora export` writes."""

    #: `model.safetensors`, or several files with an index.
    SAFETENSORS = "safetensors"
    #: A folder of `torch.distributed.checkpoint`.
    DCP = "dcp"
    #: The files of safetensors, and those that describe the model.
    HUGGINGFACE = "huggingface"


def config_names(names: Iterable[str]) -> dict[str, str]:
    """Those of a job's files that describe its model: the relative name of each by its own name.

    They stand beside the `config.json` that is the fewest folders deep, the first one by name; {} without one.
    """
    paths = sorted((PurePosixPath(name) for name in names), key=lambda path: (len(path.parts), path))
    first = next((path for path in paths if path.name == CONFIG), None)
    if first is None:
        return {}
    return {
        path.name: str(path) for path in paths if path.parent == first.parent and path.name in CONFIG_FILES
    }
