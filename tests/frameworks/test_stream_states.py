"""Streams of Hugging Face and torchdata go on at any place, within an epoch and behind it, with the same samples."""

from __future__ import annotations

import json
import subprocess
from pathlib import Path

import pytest

from tests.frameworks.transformers_environment import ROOT, transformers_python

pytestmark = [pytest.mark.slow, pytest.mark.soak, pytest.mark.timeout(600)]


def test_a_place_in_a_stream_of_a_library_gives_the_same_samples(tmp_path: Path) -> None:
    ran = subprocess.run(
        [transformers_python(), "-m", "tests.frameworks.stream_scenarios"],
        cwd=ROOT, capture_output=True, text=True, check=False,
        env={"PATH": "/usr/bin:/bin", "HOME": str(tmp_path), "HF_HUB_OFFLINE": "1"},
    )  # fmt: skip
    assert ran.returncode == 0, ran.stderr[-4000:]
    facts = json.loads(ran.stdout.splitlines()[-1])
    assert len(facts) == 8
    for name, found in facts.items():
        assert found["agree"] == [True, True, True], name
        assert found["samples"], name
    # Four steps of 12 samples, and what Hugging Face reads again of the file that it is in (50 samples).
    for name in ("hugging_face-0", "loader_of_stream-0"):
        assert max(facts[name]["reads"]) <= 4 * 12 + 50
    # Its buffer is not in its state, so it is read from its start.
    assert facts["shuffled-0"]["reads"][1] > 400
