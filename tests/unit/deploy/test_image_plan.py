"""What is to be done for an image is decided of what Azure shows; its source is the same wherever it is packed."""

from __future__ import annotations

import gzip
import io
import json
import os
import re
import shutil
import tarfile
from pathlib import Path
from typing import Any

import pytest

from deploy.azure.client.image_plan import BASE, DISK_GB, SOURCE_TAG, Step, next_step, next_version
from deploy.azure.client.image_source import PARTS, STEPS, SourceTooLarge, source_of
from tests.architecture.repository import ROOT

OURS, OTHER = {SOURCE_TAG: "ours"}, {SOURCE_TAG: "other"}


def stored(state: str = "Succeeded", tags: dict[str, str] | None = None) -> dict[str, Any]:
    return {"name": "1.0.0", "tags": tags, "properties": {"provisioningState": state}}


def template(state: str = "Succeeded", run: str = "", began: str = "1", tags: Any = None) -> dict[str, Any]:
    status = {"lastRunStatus": {"runState": run, "startTime": began}} if run else {}
    return {"tags": OURS if tags is None else tags, "properties": {"provisioningState": state, **status}}


@pytest.mark.parametrize(
    ("version", "by", "asked", "step"),
    [
        (stored(tags=OURS), None, None, Step.KEEP),
        # By Packer, which knows no digest.
        (stored(), None, None, Step.KEEP),
        (stored(tags=OTHER), None, None, Step.KEEP_OTHER),
        (stored(tags=OURS), template(run="Running"), "", Step.WAIT),
        (stored("Creating"), template(run="Running"), "", Step.WAIT),
        (stored("Creating"), None, None, Step.WAIT),
        (stored("Failed"), None, None, Step.BROKEN),
        (stored("Failed"), template(run="Failed"), None, Step.BROKEN),
        (stored("Failed"), template(run="Failed"), "", Step.FAILED),
        (None, None, None, Step.MAKE),
        (None, template("Creating"), None, Step.WAIT),
        (None, template("Deleting"), None, Step.WAIT),
        (None, template("Failed"), None, Step.REMOVE),
        (None, template(tags=OTHER), None, Step.REMOVE),
        (None, template(tags={}), None, Step.REMOVE),
        # What runs is waited for, whatever it builds.
        (None, template(run="Running", tags=OTHER), None, Step.WAIT),
        (None, template(run="Canceling"), None, Step.WAIT),
        (None, template(), None, Step.RUN),
        # An earlier call's run has failed, or the version that it made was deleted.
        (None, template(run="Failed"), None, Step.RUN),
        (None, template(run="Succeeded"), None, Step.RUN),
        # This call's run, which Azure does not show yet: it shows none, or the one before.
        (None, template(), "", Step.WAIT),
        (None, template(run="Failed", began="1"), "1", Step.WAIT),
        (None, template(run="Failed", began="2"), "1", Step.FAILED),
        (None, template(run="Canceled", began="2"), "", Step.FAILED),
        (None, template(run="PartiallySucceeded", began="2"), "", Step.FAILED),
        (None, template(run="Succeeded", began="2"), "1", Step.WAIT),
    ],
)
def test_the_next_step(version: Any, by: Any, asked: str | None, step: Step) -> None:
    assert next_step(version, by, "ours", asked) is step


@pytest.mark.parametrize(
    ("names", "after"),
    [
        ([], "1.0.0"),
        (["1.0.0"], "1.0.1"),
        (["1.0.9", "1.0.10", "0.9.99"], "1.0.11"),
        (["2.1.3", "latest", "1.x"], "2.1.4"),
    ],
)
def test_the_version_after_the_highest(names: list[str], after: str) -> None:
    assert next_version(names) == after


# --- what an image is made of


def packed(archive: bytes) -> tarfile.TarFile:
    return tarfile.open(fileobj=io.BytesIO(gzip.decompress(archive)))


def test_the_source_has_what_the_script_copies_and_names() -> None:
    names = packed(source_of().archive).getnames()
    script = (ROOT / "deploy/node/make-image").read_text()
    (parts,) = re.findall(r"^for part in (.*); do$", script, re.MULTILINE)
    wanted = [*parts.split(), *re.findall(r'"\$app/(\S+\w)"', script), "deploy/node/remora-node.service"]
    assert len(wanted) > 10
    assert [one for one in wanted if not any(f"{name}/".startswith(f"{one}/") for name in names)] == []
    # Of it pip makes the installation that the image has.
    assert "deploy/wheel_contents.py" in names
    assert not [name for name in names if "__pycache__" in name or "/." in f"/{name}"]


@pytest.fixture
def checkout(tmp_path: Path) -> Path:
    """A checkout with one file of each part."""
    root = tmp_path / "checkout"
    for part in PARTS:
        path = (
            root / part
            if Path(part).suffix or part in ("LICENSE", "deploy/make-venv")
            else root / part / "a.py"
        )
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(part)
    return root


def test_the_digest_is_of_what_files_contain_and_whether_they_can_be_called(checkout: Path) -> None:
    first = source_of(checkout)
    script = checkout / "deploy/make-venv"
    os.utime(script, (1.0, 1.0))
    (checkout / "remora/__pycache__").mkdir()
    (checkout / "remora/__pycache__/a.pyc").write_text("")
    (checkout / "docs").mkdir()
    (checkout / "docs/a.md").write_text("no part of it")
    script.chmod(0o600)
    assert source_of(checkout) == first
    script.chmod(0o755)
    assert source_of(checkout).digest != first.digest
    script.chmod(0o644)
    (checkout / "remora/a.py").write_text("changed")
    assert source_of(checkout).digest != first.digest


def test_a_checkout_that_is_too_large_or_lacks_a_part_is_said(checkout: Path) -> None:
    (checkout / "remora/large.bin").write_bytes(os.urandom(21 * 2**20))
    with pytest.raises(SourceTooLarge, match="Azure Image Builder takes 20"):
        _ = source_of(checkout).archive
    shutil.rmtree(checkout / "remora")
    with pytest.raises(OSError, match="remora"):
        source_of(checkout)


def test_packer_does_the_same_steps_on_the_same_base() -> None:
    packer = (ROOT / "deploy/node/image.pkr.hcl").read_text()
    assert f'jsondecode(file("${{path.root}}/{STEPS.name}"))' in packer
    assert "/tmp/remora.tar.gz" in packer
    for name, words in (("publisher", "image_publisher "), ("offer", "image_offer ")):
        assert re.search(rf'{words} *= "{BASE[name]}"', packer)
    assert re.search(rf'"base_sku" {{\s+type += string\s+default = "{BASE["sku"]}"', packer)
    assert re.search(rf"os_disk_size_gb += {DISK_GB}\b", packer)
    steps = json.loads(STEPS.read_text())
    assert any("/deploy/node/make-image" in one for one in steps)
