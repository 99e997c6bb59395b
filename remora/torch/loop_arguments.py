"""What a script hands over to a loop, with what its job asks for, as settings and a way to load the data."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, cast

from remora.torch.feed import is_stream
from remora.torch.loading import Loading
from remora.torch.loop_settings import Exactness, Settings, agreed, needed
from remora.torch.nonfinite import Nonfinite
from remora.torch.sampling import batch_size_of, check_prefetch, sampling_of
from remora.torch.sharded_stream import order_name


def settings_and_loading(
    *,
    data: Any,
    global_batch: int | None,
    shards: int | None,
    total_steps: int | None,
    epochs: int | None,
    seed: int,
    micro_batch: int | None,
    collate_fn: Callable[[list[Any]], Any] | None,
    num_workers: int,
    prefetch_factor: int | None,
    sampler: Any,
    batch_sampler: Any,
    shuffle: bool,
    drop_last: bool,
    exactness: Exactness | None,
    check_every: int,
    nonfinite: Nonfinite | None,
    verify_every: int | None = None,
) -> tuple[Settings, Loading]:
    """What a loop is to do; the arguments are those of `Loop`.

    Raises ValueError for what cannot work, and where script and job contradict each other.
    """
    nonfinite = cast("Nonfinite | None", agreed("nonfinite", nonfinite, str))
    exactness = cast("Exactness", agreed("exactness", exactness, str) or "sample-exact")
    check_prefetch(num_workers, prefetch_factor)
    sampling = sampling_of(data, sampler, batch_sampler, is_stream=is_stream(data))
    global_batch = needed("global_batch", batch_size_of(batch_sampler, global_batch))
    settings = Settings(
        global_batch,
        needed("shards", shards),
        micro_batch,
        seed,
        shuffle,
        drop_last,
        exactness,
        epochs,
        total_steps,
        check_every,
        nonfinite,
        verify_every,
        order_name(data, sampling),
    )
    return settings, Loading(collate_fn, num_workers, prefetch_factor, sampling)
