"""A plan remembers which groups did not fit, to be quick: without that it decides the same."""

from __future__ import annotations

from dataclasses import replace

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from cluster.policies.policies import CapacityRule, Policies
from cluster.scheduling import free_capacity
from cluster.scheduling.actions import Plan, Wait
from cluster.scheduling.planner import plan
from cluster.scheduling.view import ClusterView
from tests.unit.cluster.planner_worlds import NOW, ON_DEMAND, SPOT, job, node, rules, view


class Forgetful(dict[object, object]):
    """Keeps nothing."""

    def __setitem__(self, key: object, value: object) -> None:
        pass


@st.composite
def crowds(draw: st.DrawFn) -> tuple[ClusterView, Policies]:
    """Jobs that all want the same kind of node, of which there are too few, and nodes that were bought for some."""
    there, demands, is_joined = [], [], draw(st.booleans())
    for number in range(draw(st.integers(3, 6))):
        name, least = f"j{number}", draw(st.sampled_from([1, 2, 2, 3]))
        held, own = draw(st.sampled_from([0, 0, 0, 1])), draw(st.sampled_from([0, 0, 1]))
        demands.append(
            job(
                name,
                (least, least + draw(st.integers(0, 2))),
                is_running=held > 0,
                place=draw(st.integers(0, 5)),
                created_at=NOW - draw(st.sampled_from([0.0, 700.0])),
                project=draw(st.sampled_from(["any", "any", "small"])),
                deadline_at=draw(st.sampled_from([None, None, None, NOW + 1400.0])),
                work_left_s=900.0,
                capacity=draw(st.sampled_from([None, None, None, CapacityRule.ON_DEMAND])),
                needs_fabric=is_joined,
            )
        )
        sold = st.sampled_from([SPOT.id, ON_DEMAND.id])
        made = {"resources": {"GPU": draw(st.sampled_from([1.0, 4.0]))}, "offering": draw(sold)}
        made["fabric"] = draw(st.sampled_from(["d1", "d2"])) if is_joined else None
        there += [node(f"{name} has {at}", jobs={name: 1}, **made) for at in range(held)]
        there += [node(f"{name} owns {at}", bought_for=name, **made) for at in range(own)]
    more = draw(st.sampled_from([0, 0, 1, 2]))
    policies = rules(
        max_nodes=len(there) + more,
        capacity=draw(st.sampled_from(["prefer-spot", "mixed", "on-demand", "spot"])),
        patience_s=600.0,
        on_demand_core=1,
    )
    quota = Policies.model_validate({"projects": {"small": {"gpus": draw(st.integers(1, 6))}}})
    offered = draw(st.sampled_from([(SPOT, ON_DEMAND), (ON_DEMAND,), (SPOT,)]))
    offered = [replace(one, has_fabric=is_joined) for one in offered]
    return view(
        demands, there, offered, strict_order=draw(st.sampled_from([False, False, True]))
    ), policies.model_copy(update={"projects": quota.projects})


def deeds(actions: Plan) -> list[object]:
    """What is done; of those who wait only that they do, as a group may be shown why a smaller one did not fit."""
    return [replace(one, reason="") if isinstance(one, Wait) and one.job_id else one for one in actions]


@settings(max_examples=150, deadline=None)
@given(crowds())
def test_a_plan_that_remembers_nothing_does_the_same(world: tuple[ClusterView, Policies]) -> None:
    asked, policies = world
    quick = plan(asked, policies, NOW)
    shape = free_capacity.Shape
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(free_capacity, "Shape", lambda *fields: shape(*fields, failed=Forgetful()))
        assert deeds(plan(asked, policies, NOW)) == deeds(quick)
