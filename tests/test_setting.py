"""A setting as plain values and back, and what is said where two differ."""

import json

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

import seqveil as sv
from seqveil.core.distortion import Distortion
from seqveil.core.errors import DataError, InputError, ModelError
from seqveil.engine.setting import Setting, refuse_other

MODEL = sv.MarkovModel([0.5, 0.3, 0.2], [[0.8, 0.1, 0.1], [0.1, 0.8, 0.1], [0.2, 0.2, 0.6]], alphabet=[1, 2, 4])
COSTS = 1.0 - np.eye(3)
POSITIVE = st.floats(1e-3, 5.0)


@st.composite
def budgets(draw):
    total = draw(st.none() | POSITIVE)
    window = draw(st.sampled_from([{}, {"releases": 3}, {"seconds": 60.0}]))
    return sv.Budget(
        total=total,
        per_window=draw(POSITIVE) if window else None,
        when_spent=draw(st.sampled_from(["hold", "stop"])),
        ldp_total=draw(st.none() | POSITIVE),
        **window,
    )


@st.composite
def settings(draw):
    batch = draw(st.integers(1, 4))
    mechanism = draw(st.sampled_from(["tree", "tree_ldp", "auto"] if batch > 1 else ["optimal", "balanced", "tree"]))
    schedule = draw(st.integers(1, 4))
    distortion = draw(st.sampled_from(["hamming", "absolute", "squared"]))
    epsilon = min(draw(POSITIVE), 16.0 / schedule)  # what a pulse may spend at most
    return Setting.of(MODEL, mechanism, epsilon, distortion, schedule, draw(budgets()), batch)


@pytest.mark.slow
@given(settings())
def test_what_is_written_down_is_read_back_as_the_same_setting(setting):
    saved = json.loads(json.dumps(setting.to_dict()))
    again = Setting.from_dict(saved, MODEL)
    assert again.to_dict() == saved == setting.to_dict()
    assert again.signature == setting.signature
    assert (again.schedule, again.budget, again.batch) == (setting.schedule, setting.budget, setting.batch)
    refuse_other(saved, again.to_dict(), "the file", "a new one")


def test_the_text_that_coins_and_state_files_hang_on_stays_as_it_is():
    setting = Setting.of(sv.MarkovModel([0.5, 0.5], [[0.9, 0.1], [0.1, 0.9]]), epsilon=0.5, budget=3.0)
    assert setting.signature == (
        '{"batch": 1, "budget": {"ldp_total": null, "per_window": null, "releases": null, "seconds": null, '
        '"total": 3.0, "when_spent": "hold"}, '
        '"costs": "d8156bae0c4243d3742fc4e9774d8aceabe0410249d720c855f98afc88ff846c", '
        '"distortion": "hamming", "epsilon": 0.5, "mechanism": "optimal", "model": '
        '"ef9e380602cc531f934d40a2bd547030be434cd959c8ee7b28b762f38be00fb0", "schedule": 1}'
    )


def test_a_distortion_of_ones_own_is_told_by_its_costs():
    one, two = (Setting.of(MODEL, "balanced", 1.0, Distortion("mine", table=scale * COSTS)) for scale in (1.0, 2.0))
    assert one.to_dict() == two.to_dict()
    assert one.signature != two.signature


def test_another_model_and_damaged_parts_are_refused_in_one_line():
    saved = Setting.of(MODEL, epsilon=0.5).to_dict()
    with pytest.raises(ModelError, match="not the one the release was made with"):
        Setting.from_dict(saved, sv.MarkovModel([0.5, 0.5], [[0.9, 0.1], [0.1, 0.9]]))
    for part in saved:
        with pytest.raises(DataError, match="missing or damaged"):
            Setting.from_dict({name: value for name, value in saved.items() if name != part}, MODEL)
    for wrong in ({"schedule": "x"}, {"budget": {"everything": 1.0}}, {"mechanism": 7}, {"epsilon": "much"}):
        with pytest.raises(InputError):
            Setting.from_dict(saved | wrong, MODEL)


def test_all_parts_that_differ_are_named():
    first, second = (Setting.of(MODEL, epsilon=e, budget=b).to_dict() for e, b in ((1.0, 2.0), (2.0, 3.0)))
    with pytest.raises(InputError, match=r"x\.db: was begun with another budget and epsilon; use"):
        refuse_other(first, second, "x.db:", "a new file")
    with pytest.raises(ModelError, match="belongs to another model"):
        refuse_other(first, second | {"model": "other"}, "x.db:", "a new file")
