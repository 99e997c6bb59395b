"""A checkpoint of `remora.torch` as files that other programs read; see `export_checkpoint`."""

from remora.torch.exporting.export import Exported, export_checkpoint
from remora.torch.exporting.refusals import ExportRefused

__all__ = ["ExportRefused", "Exported", "export_checkpoint"]
