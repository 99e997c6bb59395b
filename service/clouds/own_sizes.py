"""Reads the operators' own sizes of machines, from the file that `REMORA_CATALOGUE` names."""

from __future__ import annotations

from collections.abc import Mapping
from functools import lru_cache
from pathlib import Path

from cluster.azure.catalogue import BY_NAME, Size
from cluster.azure.catalogue_file import MAX_FILE, CatalogueRefused, read_sizes, with_own
from service.clouds.place_files import CloudUnusable
from service.settings import Settings


def sizes_of(settings: Settings) -> Mapping[str, Size]:
    """Every size that nodes in Azure can be, by name: the built-in table, and the file `settings.catalogue`.

    The one answer to that, for the planner, replays, validation of policies, and the emulator.
    Raises CloudUnusable when the file cannot be read or used.
    """
    if settings.catalogue is None:
        return BY_NAME
    path = settings.catalogue.expanduser()
    if not path.is_absolute():
        # The service's processes have other working folders than the one who wrote it.
        raise CloudUnusable(f"REMORA_CATALOGUE is {str(path)[:200]!a}: write it as an absolute path")
    return read_catalogue(path)


def read_catalogue(path: Path) -> Mapping[str, Size]:
    """The built-in table with the sizes of a file.  Raises CloudUnusable."""
    try:
        state = path.stat()
        return _read(path, state.st_mtime_ns, state.st_ino)
    except OSError as error:
        raise CloudUnusable(
            f"the catalogue {path} cannot be read ({error.strerror}): correct REMORA_CATALOGUE"
        ) from error
    except UnicodeDecodeError as error:
        raise CloudUnusable(f"the catalogue {path} is not text in UTF-8") from error
    except CatalogueRefused as error:
        raise CloudUnusable(f"correct the catalogue {path}: {error}") from error


@lru_cache(maxsize=4)
def _read(path: Path, _changed_ns: int, _inode: int) -> Mapping[str, Size]:
    """Again when the file was changed."""
    with path.open("rb") as file:
        text = file.read(MAX_FILE + 1)
    if len(text) > MAX_FILE:
        raise CatalogueRefused(f"it is bigger than {MAX_FILE // 1024} KiB")
    return with_own(read_sizes(text.decode()))
