"""Policy documents: what is read from them, and that every refusal names its lines."""

from __future__ import annotations

from textwrap import dedent

import pytest
from hypothesis import given
from hypothesis import strategies as st

from cluster.policies.catalogue_conflicts import ClusterFacts
from cluster.policies.documents import read_document
from cluster.policies.offerings import CapacityType, Offering
from cluster.policies.policies import CapacityRule, Policies
from cluster.policies.policy_problems import PoliciesRefused, PolicyProblem

A100, T4 = "Standard_NC24ads_A100_v4", "Standard_NC4as_T4_v3"


def offering(size: str, zone: str | None, capacity: CapacityType, price: float, gpus: float = 1) -> Offering:
    return Offering(size=size, zone=zone, capacity=capacity, resources={"GPU": gpus}, price_per_hour=price)


#: In zone 2 everything costs twice as much.
CATALOGUE = tuple(
    offering(size, zone, capacity, price * (2.0 if zone == "2" else 1.0))
    for size, zones, prices in (
        (A100, (None, "1", "2"), {CapacityType.SPOT: 1.0, CapacityType.ON_DEMAND: 4.0}),
        (T4, (None, "1"), {CapacityType.ON_DEMAND: 0.5}),
    )
    for zone in zones
    for capacity, price in prices.items()
)
NOTHING_KNOWN = ClusterFacts()


def refusals(text: str, known: ClusterFacts = NOTHING_KNOWN) -> list[str]:
    with pytest.raises(PoliciesRefused) as refused:
        read_document(dedent(text), known)
    return [str(problem) for problem in refused.value.problems]


def pool(*lines: str) -> str:
    """A document with one pool; the first of the lines is line 4."""
    return "\n".join(["pools:", "  a:", "    sizes: [x]", *(f"    {line}" for line in lines)])


def test_yaml_and_json_mean_the_same() -> None:
    yaml = "pools: {a: {sizes: [x], zones: [1, any], idle_s: 10m, capacity: spot}}"
    json = '{"pools": {"a": {"sizes": ["x"], "zones": ["1", "any"], "idle_s": 600, "capacity": "spot"}}}'
    policies = read_document(yaml, NOTHING_KNOWN)
    assert policies == read_document(json, NOTHING_KNOWN)
    assert policies.pools["a"].idle_s == 600.0
    assert policies.pools["a"].zones == ("1", "any")
    assert policies.pools["a"].capacity is CapacityRule.SPOT
    assert read_document("pools: {}", NOTHING_KNOWN) == Policies()


def test_every_problem_is_in_one_answer() -> None:
    assert refusals("""\
        pools:
          a:
            sizes: [x]
            min_node: 5
            capacity: spt
            idle_s: a while
            share: 3
        budgt: {}
        """) == [
        "pools.a.min_node (line 4): unknown key; did you mean min_nodes?",
        "pools.a.capacity (line 5): 'spt' given, it should be 'spot', 'on-demand', 'prefer-spot' or 'mixed'",
        "pools.a.idle_s (line 6): 'a while' given, expected a duration such as 30s, 5m or 1h30m,"
        " or a number of seconds",
        "pools.a.share (line 7): unknown key; share belongs into a project",
        "budgt (line 8): unknown key; did you mean budget?",
    ]  # fmt: skip


@pytest.mark.parametrize(
    ("lines", "expected"),
    [
        (
            ["max_nodes: 3", "min_nodes: 5"],
            "pools.a.min_nodes (lines 5 and 4): min_nodes is 5 and max_nodes is 3",
        ),
        (["min_nodes: 11"], "pools.a.min_nodes (lines 4 and 2): min_nodes is 11 and max_nodes is 10"),
        (["max_nodes: 2", "warm_nodes: 3"], "pools.a.warm_nodes (lines 5 and 4): warm_nodes is 3"),
        (
            ["capacity: mixed", "max_nodes: 2", "on_demand_core: 3"],
            "pools.a.on_demand_core (lines 6 and 5): on_demand_core is 3 and max_nodes is 2",
        ),
        (
            ["capacity: spot", "on_demand_core: 1"],
            "pools.a.on_demand_core (lines 5 and 4): on_demand_core is 1 and capacity is spot",
        ),
        (
            ["capacity: on-demand", "patience_s: 10m"],
            "pools.a.patience_s (lines 5 and 4): patience_s is 600 and capacity is on-demand",
        ),
        (["zones: [1, 2, 1]"], "pools.a.zones.2 (line 4): '1' is there twice"),
        (
            ["maintenance:", "- {begins: 0 0 * * *, lasts_s: 24h}"],
            "pools.a.maintenance (line 4): maintenance never ends",
        ),
        (
            ["maintenance:", "- {begins: 0 0 30 2 *, lasts_s: 24h}"],
            "pools.a.maintenance.0.begins (line 5): '0 0 30 2 *' never comes",
        ),
    ],
)
def test_a_pool_that_contradicts_itself(lines: list[str], expected: str) -> None:
    (said,) = refusals(pool(*lines))
    assert said.startswith(expected)


NIGHTS = "- {window: {begins: 0 20 * * mon-fri, lasts_s: 12h}, "
WEEKENDS = "- {window: {begins: 0 0 * * sat, lasts_s: 2d}, "


@pytest.mark.parametrize(
    ("lines", "expected"),
    [
        ([NIGHTS + "max_nodes: 2, min_nodes: 3}"], "pools.a.schedules.0.min_nodes (line 6): min_nodes is 3"),
        ([NIGHTS + "max_nodes: 0}"], "pools.a.min_nodes (lines 4 and 6): min_nodes is 1 and max_nodes is 0"),
        ([NIGHTS + "warm_nodes: 11}"], "pools.a.schedules.0.warm_nodes (lines 6 and 2): warm_nodes is 11"),
        ([NIGHTS + "}"], "pools.a.schedules.0 (line 6): it changes nothing"),
        (
            [NIGHTS + "max_nodes: 20}", WEEKENDS + "max_nodes: 30}"],
            "pools.a.schedules.0.max_nodes (lines 6 and 7): both windows are open on e.g. Saturday",
        ),
        (
            [NIGHTS + "min_nodes: 8}", WEEKENDS + "max_nodes: 4}"],
            "pools.a.schedules.0.min_nodes (lines 6 and 7): min_nodes is 8 and max_nodes is 4 when both windows"
            " are open, on e.g. Saturday 1 January 2028 at 00:00; min_nodes must not be above max_nodes",
        ),
        (
            [NIGHTS + "max_nodes: 4}", WEEKENDS + "warm_nodes: 5}"],
            "pools.a.schedules.1.warm_nodes (lines 7 and 6): warm_nodes is 5 and max_nodes is 4 when both windows",
        ),
        (
            [NIGHTS + "max_nodes: 20, min_nodes: 8}", WEEKENDS + "max_nodes: 4}"],
            "pools.a.schedules.0.max_nodes (lines 6 and 7): both windows are open on e.g. Saturday",
        ),
    ],
)
def test_schedules_that_cannot_be(lines: list[str], expected: str) -> None:
    (said,) = refusals(pool("min_nodes: 1", "schedules:", *lines))
    assert said.startswith(expected)


@pytest.mark.parametrize("schedule", ["warm_nodes: 1", "warm_nodes: 0", "max_nodes: 9"])
def test_what_a_pool_contradicts_itself_is_not_said_of_its_schedules_again(schedule: str) -> None:
    (said,) = refusals(pool("min_nodes: 5", "max_nodes: 3", "schedules:", f"{NIGHTS}{schedule}}}"))
    assert said.startswith("pools.a.min_nodes (lines 4 and 5): min_nodes is 5 and max_nodes is 3;")


@pytest.mark.parametrize(
    "lines",
    [
        [NIGHTS + "max_nodes: 20}", WEEKENDS + "max_nodes: 20}"],
        [NIGHTS + "max_nodes: 20}", WEEKENDS + "warm_nodes: 2}"],
        [NIGHTS + "max_nodes: 8}", WEEKENDS + "min_nodes: 8}"],
        [NIGHTS + "max_nodes: 4}", "- {window: {begins: 0 8 * * *, lasts_s: 12h}, min_nodes: 8}"],
        [NIGHTS + "max_nodes: 20}", "- {window: {begins: 0 8 * * *, lasts_s: 12h}, max_nodes: 5}"],
    ],
)
def test_schedules_that_agree_or_never_meet_are_fine(lines: list[str]) -> None:
    assert len(read_document(pool("schedules:", *lines), NOTHING_KNOWN).pools["a"].schedules) == 2


def test_a_core_fits_into_what_a_schedule_allows_unless_that_closes_the_pool() -> None:
    def text(most: int) -> str:
        core = ("capacity: mixed", "on_demand_core: 3")
        return pool(*core, "schedules:", NIGHTS + f"max_nodes: {most}}}")

    (said,) = refusals(text(1))
    assert said == (
        "pools.a.on_demand_core (lines 5 and 7): on_demand_core is 3 and max_nodes is 1 from '0 20 * * mon-fri' on;"
        " on_demand_core must not be above max_nodes"
    )
    for most in (0, 3):
        assert read_document(text(most), NOTHING_KNOWN).pools["a"].on_demand_core == 3


@pytest.mark.parametrize(
    ("lines", "said"),
    [
        (["min_nodes: 12"], "min_nodes is 12 and max_nodes is 10 (its default); min_nodes must not"),
        (["min_nodes: 12", "max_nodes: 10"], "min_nodes is 12 and max_nodes is 10; min_nodes must not"),
        (
            ["schedules:", NIGHTS + "min_nodes: 12}"],
            "min_nodes is 12 and max_nodes is 10 (its default) from '0 20 * * mon-fri' on",
        ),
        (
            ["on_demand_core: 2"],
            "on_demand_core is 2 and capacity is prefer-spot (its default); on_demand_core is for",
        ),
    ],
)
def test_a_default_that_contradicts_is_called_one(lines: list[str], said: str) -> None:
    (refusal,) = refusals(pool(*lines))
    assert said in refusal


def test_a_day_of_a_project_fits_into_the_cluster_s_month() -> None:
    project = "projects:\n  vision: {usd_per_day: 500}\nbudget:\n  usd_per_month: "
    assert refusals(f"{project}100") == [
        "projects.vision.usd_per_day (lines 2 and 4): usd_per_day is 500, and usd_per_month of budget is 100;"
        " it must not be more"
    ]
    assert read_document(f"{project}500", NOTHING_KNOWN).budget.usd_per_month == 500


def test_money_that_contradicts() -> None:
    assert refusals("""\
        projects:
          vision: {usd_per_day: 30}
          speech:
            usd_per_day: 9
            usd_per_month: 5
        budget:
          usd_per_day: 10
          steps:
            spot-only: 0.9
            stop-growing: 0.95
            shrink: 1.5
        """) == [
        "projects.vision.usd_per_day (lines 2 and 7): usd_per_day is 30, and usd_per_day of budget is 10;"
        " it must not be more",
        "projects.speech.usd_per_day (lines 4 and 5): usd_per_day is 9, and usd_per_month of the project is 5;"
        " it must not be more",
        "budget.steps.stop-growing (lines 10 and 9): stop-growing begins at 0.95 and spot-only at 0.9;"
        " the milder step comes first",
        "budget.steps.shrink (lines 11 and 8): shrink begins at 1.5 and pause at 1, as it is not named;"
        " the milder step comes first",
    ]  # fmt: skip
    (said,) = refusals("budget: {steps: {shrink: 0.5, stop-growing: 0.1, spot-only: 0.2}}")
    assert said.startswith("budget.steps (line 1): steps are parts of a budget, and there is none")


class TestAgainstWhatThereIs:
    known = ClusterFacts(catalogue=CATALOGUE, rules=frozenset({"quiet-nights"}), most_nodes={T4: 4})

    @pytest.mark.parametrize(
        ("text", "expected"),
        [
            (f"pools: {{a: {{sizes: [{A100[:-1]}5]}}}}", f"did you mean {A100}?"),
            (
                "pools: {a: {sizes: [Standard_ND96isr_MI300X_v5]}}",
                "has GPUs of AMD, on which Remora does not train",
            ),
            (f"pools: {{a: {{sizes: [{A100}], zones: [3]}}}}", "they are offered in 1, 2"),
            (f"pools: {{a: {{sizes: [{T4}], capacity: spot, max_nodes: 1}}}}", "is offered as spot"),
            (f"pools: {{a: {{sizes: [{T4}], max_nodes: 5}}}}", "max_nodes is 5, and of"),
            (f"pools: {{a: {{sizes: [{T4}]}}}}", "max_nodes is 10 (its default), and of"),
            (f"pools: {{a: {{sizes: [{T4}], max_nodes: 5}}}}", "there are 4 nodes at most"),
            ("rules: [quiet-night]", "no rule 'quiet-night' is installed"),
            (
                f"pools: {{a: {{sizes: [{A100}], max_nodes: 3}}}}\nprojects: {{p: {{gpus: 4}}}}",
                "all pools together have 3 GPUs at most",
            ),
            (
                f"pools: {{a: {{sizes: [{A100}], min_nodes: 5}}}}\nbudget: {{usd_per_day: 100}}",
                "the nodes of min_nodes alone cost 120.00 USD a day",
            ),
        ],
    )
    def test_what_is_not_there_is_refused(self, text: str, expected: str) -> None:
        (said,) = refusals(text, self.known)
        assert expected in said

    @pytest.mark.parametrize(
        ("pool", "usd_per_day"),
        [
            ("capacity: spot, min_nodes: 2", 2 * 24),
            ("capacity: prefer-spot, min_nodes: 2", 2 * 24),
            ("capacity: on-demand, min_nodes: 2", 2 * 96),
            ("capacity: mixed, min_nodes: 3", 96 + 2 * 24),
            ("capacity: mixed, min_nodes: 3, on_demand_core: 0", 3 * 24),
            ("capacity: mixed, min_nodes: 3, on_demand_core: 5", 3 * 96),
            ("capacity: spot, min_nodes: 2, zones: [2]", 2 * 48),
            ("capacity: spot, min_nodes: 2, zones: [2, 1]", 2 * 24),
            (f"sizes: [{A100}, {T4}], capacity: spot, min_nodes: 1", 24),
            (f"sizes: [{A100}, {T4}], capacity: prefer-spot, min_nodes: 1", 12),
            (f"sizes: [{A100}, {T4}], zones: [2], min_nodes: 1", 48),
            (
                "capacity: spot, min_nodes: 3,"
                " schedules: [{window: {begins: 0 20 * * *, lasts_s: 1h}, min_nodes: 2}]",
                23 * 3 + 2,
            ),
        ],
    )
    @pytest.mark.parametrize(
        ("key", "days", "period"),
        [
            ("usd_per_day", 1, "a day"),
            ("usd_per_month", 28, "in the 28 days of the shortest month"),
        ],
    )
    def test_nodes_that_are_never_returned_have_to_be_affordable(
        self, pool: str, usd_per_day: int, key: str, days: int, period: str
    ) -> None:
        """At the least that the pool may pay for them: by its capacity types, in its zones; to the cent."""
        sizes = "" if "sizes" in pool else f"sizes: [{A100}], "
        cost = usd_per_day * days
        text = f"pools:\n  a: {{{sizes}{pool}}}\nbudget:\n  {key}: "
        (said,) = refusals(f"{text}{cost - 1}", self.known)
        assert said == (
            f"budget.{key} (lines 4 and 2): {key} is {cost - 1},"
            f" and the nodes of min_nodes alone cost {cost}.00 USD {period} at the least,"
            " most of it in the pool a"
        )
        assert read_document(f"{text}{cost}", self.known).pools["a"].min_nodes

    @pytest.mark.parametrize(("price", "cost"), [(0.0502, "1.20"), (0.0504, "1.21"), (1 / 3, "8.00")])
    def test_what_nodes_cost_is_compared_in_cents_as_it_is_reported(self, price: float, cost: str) -> None:
        known = ClusterFacts(catalogue=(offering(A100, "1", CapacityType.SPOT, price),))
        text = f"pools: {{a: {{sizes: [{A100}], zones: [1], capacity: spot, min_nodes: 1}}}}\nbudget: {{usd_per_day: "
        assert read_document(f"{text}{cost}}}", known).pools["a"].min_nodes == 1
        (said,) = refusals(f"{text}{float(cost) - 0.001:.3f}}}", known)
        assert f"cost {cost} USD a day" in said

    @pytest.mark.parametrize(
        ("schedule", "budget", "cost"),
        [
            ("begins: 0 0 * * *, lasts_s: 24h}, min_nodes: 5", "usd_per_day", "120.00 USD a day"),
            ("begins: 0 8 * * *, lasts_s: 12h}, min_nodes: 5", "usd_per_day", "60.00 USD a day"),
            (
                "begins: 0 12 * * sat, lasts_s: 1d}, min_nodes: 5",
                "usd_per_day",
                "60.00 USD on Saturday 1 January 2028",
            ),
            (
                "begins: 0 0 * * *, lasts_s: 24h}, min_nodes: 5",
                "usd_per_month",
                "3360.00 USD in the 28 days of the shortest month",
            ),
            (
                "begins: 0 0 1-29/28 6 *, lasts_s: 24h}, min_nodes: 5",
                "usd_per_month",
                "120.00 USD in the first 28 days of June 2028",
            ),
        ],
    )
    def test_a_minimum_of_a_schedule_costs_for_as_long_as_it_holds(
        self, schedule: str, budget: str, cost: str
    ) -> None:
        usd = float(cost.split()[0])
        mine = f"pools:\n  a:\n    sizes: [{A100}]\n    schedules:\n    - {{window: {{{schedule}}}\n"
        text = f"{mine}budget:\n  {budget}: "
        (said,) = refusals(f"{text}{usd - 1}", self.known)
        assert said == (
            f"budget.{budget} (lines 7 and 5): {budget} is {usd - 1:g},"
            f" and the nodes of min_nodes alone cost {cost} at the least, most of it in the pool a"
        )
        assert read_document(f"{text}{usd}", self.known).pools["a"].min_nodes == 0

    def test_a_day_and_a_month_that_are_too_short_of_money_are_both_reported(self) -> None:
        said = refusals(
            f"""\
            pools:
              a: {{sizes: [{A100}], capacity: on-demand, min_nodes: 1}}
              b: {{sizes: [{T4}], capacity: on-demand, min_nodes: 2, max_nodes: 4}}
            budget: {{usd_per_day: 119, usd_per_month: 3359.99}}
            """,
            self.known,
        )
        assert [one.partition(" alone ")[2] for one in said] == [
            "cost 120.00 USD a day at the least, most of it in the pool a",
            "cost 3360.00 USD in the 28 days of the shortest month at the least, most of it in the pool a",
        ]

    def test_a_price_that_is_no_binary_number_fits_a_budget_that_it_fits(self) -> None:
        sold = (offering(A100, None, CapacityType.SPOT, 0.1),)
        text = f"pools: {{a: {{sizes: [{A100}], min_nodes: 3}}}}\nbudget: {{usd_per_day: 7.2}}"
        assert read_document(text, ClusterFacts(catalogue=sold)).budget.usd_per_day == 7.2

    def test_what_is_there_is_taken(self) -> None:
        text = f"""
        pools: {{a: {{sizes: [{A100}, {T4}], zones: [2, 1, any], min_nodes: 1, max_nodes: 20}}}}
        projects: {{p: {{gpus: 20}}}}
        budget: {{usd_per_day: 100}}
        rules: [quiet-nights]
        """
        assert read_document(text, self.known).rules == ("quiet-nights",)


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        ("", "the document is empty"),
        ("# nothing", "the document is empty"),
        ("[]", "a policy document is a mapping"),
        ("a: b: c", "the document is not YAML: mapping values are not allowed in this context (line 1, column 5)"),
        ("pools: {}\npools: {}", "the key 'pools' is there twice (line 2, column 1)"),
        ("pools: &a [*a]", "the alias 'a' stands inside what it means"),
        ("pools: " + "[" * 5000, "nested too deeply"),
        ("x: " + "y" * 600_000, "bigger than 512 KiB"),
        ("pools: {1: {sizes: [y]}}", "pools.1 (line 1): keys must be texts"),
        ("pools: {A b: {sizes: [y]}}", "'A b' is no name"),
        ("a: &a [1,1,1,1,1,1,1,1,1,1]\n" + "\n".join(
            f"{new}: &{new} [{','.join(f'*{old}' for _ in range(10))}]"
            for old, new in zip("abcdef", "bcdefg", strict=True)
        ), "more than 100000 values"),
    ],
)  # fmt: skip
def test_texts_that_are_no_document(text: str, expected: str) -> None:
    (said,) = refusals(text)
    assert expected in said


@given(st.text(max_size=60))
def test_any_text_is_read_or_refused_in_words(text: str) -> None:
    assert all(problem.message for problem in problems_of(f"pools: {{a: {{sizes: [x], {text}}}}}"))


def problems_of(text: str) -> tuple[PolicyProblem, ...]:
    try:
        read_document(text, NOTHING_KNOWN)
    except PoliciesRefused as refused:
        return refused.problems
    return ()


def test_budgets_have_the_same_figures_when_they_say_the_same() -> None:
    def figures(**budget: object) -> str:
        return Policies.model_validate({"budget": budget}).budget.figures

    steps = {"shrink": 0.9, "spot-only": 0.8}
    same = figures(usd_per_day=10.0, steps=dict(reversed(steps.items())))
    assert figures(usd_per_day=10, steps=steps) == same
    others = {figures(usd_per_day=10), figures(usd_per_day=11, steps=steps), figures(usd_per_month=10)}
    assert len({same, *others}) == 4


TWO_CLUSTERS = """\
pools:
  cpu: {sizes: [x]}
  locked: {sizes: [x], cluster: ward}
projects:
  patients: {cluster: ward}
ray_programs: {project: patients}
"""


def test_each_cluster_follows_its_own_pools() -> None:
    policies = read_document(TWO_CLUSTERS, NOTHING_KNOWN)
    assert policies.clusters == ("default", "ward")
    assert [policies.cluster_of(one) for one in ("patients", "other")] == ["ward", "default"]
    first, second = policies.of_cluster("default"), policies.of_cluster("ward")
    assert (list(first.pools), first.ray_programs) == (["cpu"], None)
    assert (list(second.pools), second.ray_programs) == (["locked"], policies.ray_programs)
    assert first.projects == second.projects == policies.projects
    assert policies.of_cluster("elsewhere").pools == {}
    assert Policies().of_cluster("default") == Policies()


def test_a_project_is_on_a_cluster_that_has_pools() -> None:
    assert refusals(TWO_CLUSTERS.replace("patients: {cluster: ward}", "patients: {cluster: wart}")) == [
        "projects.patients.cluster (line 5): no pool is in the cluster 'wart'; the clusters are default, ward"
    ]


def test_pools_of_ray_programs_are_in_the_cluster_of_their_project() -> None:
    text = TWO_CLUSTERS.replace("{project: patients}", "{project: patients, pools: [locked, cpu]}")
    said = "the pool 'cpu' is in the cluster 'default', and the project 'patients' in 'ward'"
    assert [one.message for one in problems_of(text)] == [said]


@pytest.mark.parametrize("name", ["", "Ward", "../x", "a/b", "a" * 33, "-a", "a.b", "3"])
def test_names_of_clusters_are_short_words(name: str) -> None:
    document = f'pools: {{a: {{sizes: [x], cluster: "{name}"}}}}'
    if name == "3":
        assert read_document(document, NOTHING_KNOWN).clusters == ("default", "3")
    else:
        assert len(refusals(document)) == 1


def test_pools_of_ray_programs_are_there_and_named_once() -> None:
    text = "pools:\n  cpu: {sizes: [x]}\nray_programs:\n  pools: [cpu, gpu, cpu]\n"
    found = {problem.field: problem.message for problem in problems_of(text)}
    assert found["ray_programs.pools.1"] == "there is no pool 'gpu'; the pools are cpu"
    assert found["ray_programs.pools.2"] == "'cpu' is there twice; the order says what is preferred"
