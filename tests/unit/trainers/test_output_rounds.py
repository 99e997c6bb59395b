"""When what several workers wrote is one version: whatever the order of writing, looking and dying."""

from __future__ import annotations

import random
from collections import deque
from dataclasses import replace

import pytest

from trainers.outputs.manifest import Changes, OutputFile, folders_of
from trainers.outputs.rounds import FIRST_S, LATE_S, Rounds
from trainers.outputs.versions import OutputHistory, is_save

GROUP = (1, 1)


def file(name: str, rank: int = 0, **fields: object) -> OutputFile:
    stored = f"{name}-of-{rank}/{name}"
    base = OutputFile(
        name=name, size_bytes=8, sha256=stored, stored=stored, rank=rank, attempt=1, generation=1
    )
    return replace(base, **fields)  # type: ignore[arg-type]


class Group:
    """Workers that say what a test lets them say."""

    def __init__(self, ranks: int, *, outputs: tuple[str, ...] = ("m",), commit: str | None = None) -> None:
        self.rounds = Rounds(outputs, {} if commit is None else {outputs[0]: commit})
        self.rounds.begin(dict(enumerate(range(ranks))), GROUP)
        self.files: dict[str, OutputFile] = {}
        self.change_counts = dict.fromkeys(range(ranks), 0)
        self.now = 0.0
        self.number = 0

    def say(self, rank: int, *names: str, **changes: object) -> None:
        """A worker has looked, and found these files changed."""
        self.change_counts[rank] += bool(names or changes.get("busy"))
        written = tuple(file(name, rank, sha256=f"{name}-{self.change_counts[rank]}") for name in names)
        one = Changes(
            rank=rank,
            group=GROUP,
            round=self.number,
            change_counts={"m": self.change_counts[rank]},
            written=written,
        )
        self.rounds.receive(rank, replace(one, **changes))  # type: ignore[arg-type]

    def ask(self) -> None:
        self.number = self.rounds.open()

    def agree(self) -> set[str]:
        """Names of the version that was agreed on; the present one's while there is no new one."""
        if (agreed := self.rounds.agree(self.files, self.now)) is not None:
            kept = OutputHistory().follow(self.files, is_save=False).follow(agreed.files, is_save=False)
            self.files = dict(kept.newest.files)
            self.rounds.know(self.files)
        return set(self.files)

    def rest(self, *ranks: int) -> set[str]:
        """A round in which no rank has anything new."""
        self.ask()
        for rank in ranks:
            self.say(rank)
        return self.agree()


def both_wrote(commit: str | None = None) -> Group:
    """Two workers, and a version of an output to which both of them wrote."""
    group = Group(2, commit=commit)
    group.say(0, "m/checkpoint-20/model", "m/checkpoint-20/end")
    group.say(1, "m/checkpoint-20/random-1")
    assert len(group.rest(0, 1)) == 3
    return group


def test_a_version_needs_a_round_that_began_after_everybody_was_at_rest() -> None:
    group = Group(2)
    group.say(0, "m/a/model")
    assert group.agree() == set(), "the other one may be in the middle of it"
    group.say(1, "m/a/random")
    assert group.agree() == set(), "the first one may have gone on meanwhile"
    group.ask()
    group.say(0)
    assert group.agree() == set()
    group.say(1)
    assert group.agree() == {"m/a/model", "m/a/random"}


def test_who_writes_holds_everybody_s_files_of_that_output_up() -> None:
    group = both_wrote()
    group.say(0, "m/checkpoint-40/model")
    group.say(1, busy=frozenset({"m"}))
    for _ in range(3):
        group.ask()
        group.say(0)
        group.say(1, busy=frozenset({"m"}))
        assert not any("40" in name for name in group.agree())
    group.say(1, "m/checkpoint-40/random-1")
    assert {"m/checkpoint-40/model", "m/checkpoint-40/random-1"} <= group.rest(0, 1)


def test_what_a_lost_worker_took_part_in_becomes_no_version_without_it() -> None:
    group = both_wrote()
    # The loss of rank 0's node in the middle of a save: the other one had written its file, and ends with an error.
    group.say(1, "m/checkpoint-40/random-1")
    group.ask()
    group.say(1, end="failed")
    group.now = 1e6
    assert not any("40" in name for name in group.agree())


def test_a_worker_that_never_writes_is_not_needed() -> None:
    group = Group(2)
    group.say(0, "m/snapshot")
    group.say(1)
    group.rest(0, 1)
    group.now += FIRST_S
    assert group.rest(0, 1) == {"m/snapshot"}
    before = group.files["m/snapshot"]
    # Rank 1 is lost; what rank 0 had saved by then counts.
    group.say(0, "m/snapshot", end="killed")
    assert group.agree() == {"m/snapshot"}
    assert group.files["m/snapshot"] != before


def test_an_output_waits_for_who_wrote_to_such_a_folder_before_but_not_for_ever() -> None:
    group = both_wrote()
    group.say(1, "m/checkpoint-40/random-1")
    assert not any("40" in name for name in group.rest(0, 1))
    group.now = LATE_S - 1
    assert not any("40" in name for name in group.rest(0, 1))
    group.now = LATE_S
    assert "m/checkpoint-40/random-1" in group.rest(0, 1)


def test_nothing_counts_before_the_file_that_is_written_last() -> None:
    group = both_wrote(commit="end")
    group.say(0, "m/checkpoint-40/model")
    group.say(1, "m/checkpoint-40/random-1")
    group.now = 1e6
    assert not any("40" in name for name in group.rest(0, 1))
    group.say(0, "m/checkpoint-40/end")
    assert "m/checkpoint-40/model" in group.rest(0, 1)


def test_when_all_commands_returned_0_all_that_there_is_counts() -> None:
    group = both_wrote(commit="end")
    group.say(0, "m/final", busy=frozenset({"m"}), end="clean")
    assert "m/final" not in group.agree()
    group.say(1, end="clean")
    assert "m/final" in group.agree()


def test_a_folder_that_rank_0_has_rotated_away_goes_with_what_others_wrote_into_it() -> None:
    group = both_wrote()
    group.say(
        0, "m/checkpoint-40/model", removed=("m/checkpoint-20/model",), removed_folders=("m/checkpoint-20",)
    )
    group.say(1, "m/checkpoint-40/random-1")
    assert group.rest(0, 1) == {"m/checkpoint-40/model", "m/checkpoint-40/random-1"}


def test_a_folder_that_another_rank_has_removed_stays_where_rank_0_wrote_to_it() -> None:
    group = both_wrote()
    group.say(1, removed=("m/checkpoint-20/random-1",), removed_folders=("m/checkpoint-20",))
    assert group.rest(0, 1) == {"m/checkpoint-20/model", "m/checkpoint-20/end"}


def test_logs_wait_for_no_rank() -> None:
    group = both_wrote()
    group.say(0, "m/events.out.tfevents.1")
    assert "m/events.out.tfevents.1" in group.rest(0, 1)


def test_after_a_change_in_place_only_what_is_written_again_counts() -> None:
    group = Group(3)
    for rank in range(3):
        group.say(rank, f"m/state-{rank}")
    group.rest(0, 1, 2)
    first = dict(group.files)
    group.say(0, "m/state-0")
    group.say(1, "m/state-1")
    # Rank 2 is lost before it could say whether it had written its own.
    assert group.rounds.follow({0: 0, 1: 1}) == set()
    assert group.rest(0, 1)
    assert group.files == first
    group.say(0, "m/state-0")
    assert group.rest(0, 1)
    assert group.files == first, "rank 1's is still of the save that the lost one was part of"
    group.say(1, "m/state-1")
    group.rest(0, 1)
    assert group.files["m/state-0"] != first["m/state-0"]


def test_files_that_became_no_version_are_named_for_removal() -> None:
    group = both_wrote()
    group.say(0, "m/checkpoint-40/model")
    assert group.rounds.receive(
        0, Changes(rank=0, group=GROUP, written=(file("m/checkpoint-40/model", stored="again/x"),))
    ) == {"m"}
    assert group.rounds.begin({0: 0}, (1, 2)) == {"again"}
    late = Changes(rank=1, group=GROUP, written=(file("m/y", stored="late/y"),))
    assert group.rounds.receive(1, late) == {"late"}, "a worker of an earlier group is back again"
    assert not group.rounds.has_pending


class World:
    """Workers that save together, a driver that asks them, and messages that take their time."""

    def __init__(self, ranks: int) -> None:
        self.ranks = range(ranks)
        self.rounds = Rounds(("m",), {})
        self.rounds.begin({rank: rank for rank in self.ranks}, GROUP)
        self.number = 0
        self.files: dict[str, OutputFile] = {}
        self.disks: dict[int, dict[str, str]] = {rank: {} for rank in self.ranks}
        self.reported: dict[int, dict[str, str]] = {rank: {} for rank in self.ranks}
        self.looked: dict[int, dict[str, str]] = {rank: {} for rank in self.ranks}
        self.change_counts = dict.fromkeys(self.ranks, 0)
        self.knows = dict.fromkeys(self.ranks, 0)
        #: Parts of saves that each rank has written; a save has three.
        self.parts = dict.fromkeys(self.ranks, 0)
        self.dead: set[int] = set()
        self.under_way: dict[int, deque[Changes]] = {rank: deque() for rank in self.ranks}
        self.content: dict[str, str] = {}
        self.published: set[int] = set()
        #: Stands still while anything may happen: no rank stops waiting for a rank that is late.
        self.now = 0.0

    def write(self, rank: int) -> None:
        """A rank writes a third of its files; a save begins when all have finished the one before."""
        save, part = divmod(self.parts[rank], 3)
        if rank in self.dead or (not part and min(self.parts.values()) < 3 * save):
            return
        disk = self.disks[rank]
        if part == 2 and rank == 0:
            disk["m/latest"] = str(save)
            for name in [name for name in disk if f"m/checkpoint-{save - 2}/" in name]:
                del disk[name]
        elif part < 2:
            disk[f"m/checkpoint-{save}/{rank}-{part}"] = f"{save}-{rank}-{part}"
        self.parts[rank] += 1

    def look(self, rank: int) -> None:
        if rank in self.dead:
            return
        disk, reported = self.disks[rank], self.reported[rank]
        self.change_counts[rank] += disk != self.looked[rank]
        self.looked[rank] = dict(disk)
        is_busy = bool(self.parts[rank] % 3)
        written, removed, folders = [], (), ()
        if not is_busy:
            for name in disk.keys() - {name for name in reported if reported[name] == disk.get(name)}:
                stored = f"{len(self.content)}/{name}"
                self.content[stored] = disk[name]
                written.append(file(name, rank, stored=stored, sha256=disk[name]))
            removed = tuple(reported.keys() - disk.keys())
            there = {folder for name in disk for folder in folders_of(name)}
            folders = tuple({folder for name in removed for folder in folders_of(name)} - there)
            self.reported[rank] = dict(disk)
        self.under_way[rank].append(
            Changes(
                rank=rank,
                group=GROUP,
                round=self.knows[rank],
                change_counts={"m": self.change_counts[rank]},
                busy=frozenset({"m"}) if is_busy else frozenset(),
                written=tuple(written),
                removed=removed,
                removed_folders=folders,
            )
        )

    def deliver(self, rank: int) -> None:
        if self.under_way[rank]:
            self.rounds.receive(rank, self.under_way[rank].popleft())
            self.agree()

    def ask(self, rank: int) -> None:
        """The driver begins a round, or one that has begun reaches a rank."""
        if rank == 0:
            self.number = self.rounds.open()
            self.agree()
        self.knows[rank] = self.number

    def die(self, rank: int) -> None:
        if rank % 2:
            self.dead.add(rank)

    def agree(self) -> None:
        agreed = self.rounds.agree(self.files, self.now)
        if agreed is None:
            return
        self.files = dict(OutputHistory().follow(agreed.files, is_save=True).newest.files)
        self.rounds.know(self.files)
        saved: dict[int, set[str]] = {}
        for name, one in self.files.items():
            folder, _, last = name.removeprefix("m/").rpartition("/")
            if folder:
                number = int(folder.removeprefix("checkpoint-"))
                saved.setdefault(number, set()).add(last)
                assert self.content[one.stored] == f"{number}-{last}"
        whole = {f"{rank}-{part}" for rank in self.ranks for part in (0, 1)}
        for number, names in saved.items():
            assert names == whole, f"of checkpoint-{number} only {sorted(names)} are in the version"
        assert int(self.content[self.files["m/latest"].stored]) == max(saved), "what is named is there"
        assert len(saved) <= 2, "what was rotated away is gone"
        self.published.add(max(saved))

    def end_save(self) -> None:
        """All who live write the rest of the newest save."""
        saves = -(-max(1, *self.parts.values()) // 3)
        for _ in range(3):
            for rank in self.ranks:
                if self.parts[rank] < 3 * saves:
                    self.write(rank)

    def settle(self) -> None:
        """All let each other finish, and are asked until no rank is waited for."""
        self.end_save()
        for _ in range(3):
            self.now += LATE_S
            for rank in self.ranks:
                self.ask(rank)
            for rank in self.ranks:
                self.look(rank)
                while self.under_way[rank]:
                    self.deliver(rank)

    def round(self, play: random.Random) -> None:
        """Some write; then all are asked, in any order; others go on writing, and some answers take their time."""
        chance = play.random()
        if chance < 0.3:
            for _ in range(play.randrange(1, 6 * len(self.ranks))):
                self.write(play.choice(self.ranks))
        elif chance < 0.6:
            self.end_save()
        order = play.sample(self.ranks, len(self.ranks))
        self.ask(0)
        for rank in order:
            if rank and play.random() < 0.95:
                self.ask(rank)
            for act in (self.look, self.deliver, self.deliver):
                if play.random() < 0.95:
                    act(rank)
                if play.random() < 0.03:
                    self.write(play.choice(self.ranks))


@pytest.mark.parametrize("ranks", [1, 2, 3, 4])
def test_a_version_is_one_state_in_which_every_rank_had_finished_writing(ranks: int) -> None:
    versions = 0
    for seed in range(20):
        play, world = random.Random(seed), World(ranks)
        # So that it is known who writes where; from then on the clock stands still.
        world.settle()
        for _ in range(30):
            world.round(play)
            if seed % 2 and play.random() < 0.03:
                world.die(play.randrange(ranks))
        versions += len(world.published) - 1
        if not world.dead:
            world.settle()
            assert max(world.published) == world.parts[0] // 3 - 1, "the newest save is published in the end"
    assert versions > 15, "the play reaches what it is about"


@pytest.mark.parametrize(
    ("name", "fields", "commit", "saves"),
    [
        ("m/checkpoint-40/model", {"size_bytes": 100_000}, None, True),
        ("m/checkpoint-20/model", {"size_bytes": 100_000}, None, True),
        ("m/checkpoint-20/model", {"size_bytes": 100_000, "sha256": "old"}, None, False),
        ("m/settings.json", {"size_bytes": 24_000}, None, False),
        ("m/train.log", {"size_bytes": 500_000, "is_grown": True}, None, False),
        ("m/runs/events.out.tfevents.9", {"size_bytes": 500_000}, None, False),
        ("mlruns/1-1/metrics/loss", {"size_bytes": 500_000}, None, False),
        ("m/checkpoint-40/model", {"size_bytes": 100_000}, "end", False),
        ("m/checkpoint-40/end", {"size_bytes": 1}, "end", True),
    ],
)
def test_what_counts_as_a_save(name: str, fields: dict[str, object], commit: str | None, saves: bool) -> None:
    before = {"m/checkpoint-20/model": file("m/checkpoint-20/model", size_bytes=100_000, sha256="old")}
    after = {**before, name: file(name, **fields)}
    assert is_save(before, after, {} if commit is None else {"m": commit}) is saves


def kept_after(saves: int) -> OutputHistory:
    kept = OutputHistory()
    for number in range(1, saves + 1):
        kept = kept.follow({"snapshot": file("snapshot", sha256=str(number))}, is_save=True)
    return kept


def test_starts_that_fail_fall_back_one_version_at_a_time_twice_at_most() -> None:
    kept, started = kept_after(4), []
    for _ in range(5):
        started.append(kept.start.number)
        kept = kept.fail()
    assert started == [4, 3, 2, 4, 4], "when the older ones fail as well they are not the cause"


def test_what_is_saved_after_falling_back_follows_the_older_version() -> None:
    kept = kept_after(4).fail()
    assert kept.is_fallen_back
    saved = kept.follow({"snapshot": file("snapshot", sha256="new")}, is_save=True)
    assert not saved.is_fallen_back
    assert [version.number for version in (saved.newest, *saved.before)] == [5, 3, 2]
    assert saved.failed_starts == 0


def test_the_first_save_falls_back_to_a_start_without_files() -> None:
    kept = kept_after(1).fail()
    assert (kept.start.files, kept.newest.number) == ({}, 1)
