"""What is promised: a policy as TOML and plain values and back, what goes together, and what it means for a model."""

import inspect
import json
import math

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

import seqveil as sv
from seqveil.core.distortion import Distortion
from seqveil.core.errors import DataError, InputError, ModelError
from seqveil.engine import policy as policies
from seqveil.engine.budget import epsilon_for
from seqveil.engine.policy import refuse_other, saved_terms

MODEL = sv.MarkovModel([0.5, 0.3, 0.2], [[0.8, 0.1, 0.1], [0.1, 0.8, 0.1], [0.2, 0.2, 0.6]], alphabet=[1, 2, 4])
OTHER = sv.MarkovModel([0.4, 0.3, 0.3], [[0.7, 0.2, 0.1], [0.1, 0.8, 0.1], [0.2, 0.2, 0.6]], alphabet=[1, 2, 4])
COSTS = 1.0 - np.eye(3)
POSITIVE = st.floats(1e-3, 5.0)
KEPT = sv.secrets.ever(4, epsilon=0.5, window=3)


@st.composite
def budgets(draw):
    window = draw(st.sampled_from([{}, {"releases": 3}, {"seconds": 60.0}]))
    return sv.Budget(
        total=draw(st.none() | POSITIVE),
        per_window=draw(POSITIVE) if window else None,
        when_spent=draw(st.sampled_from(["hold", "stop"])),
        ldp_total=draw(st.none() | POSITIVE),
        **window,
    )


@st.composite
def plain_policies(draw):
    batch = draw(st.integers(1, 4))
    mechanism = draw(st.sampled_from(["tree", "auto"] if batch > 1 else [None, "balanced", "tree"]))
    distortion = draw(st.sampled_from(["hamming", "absolute", "squared"]))
    if draw(st.booleans()):
        budget = sv.Budget(total=5.0, over=draw(st.integers(4, 99)), delta=draw(st.none() | st.floats(1e-9, 0.1)))
        return sv.Policy(budget=budget, batch=batch, mechanism=mechanism, distortion=distortion)
    epsilon = min(draw(POSITIVE), 16.0)  # what a release may spend at most
    return sv.Policy(epsilon, budget=draw(budgets()), batch=batch, mechanism=mechanism, distortion=distortion)


VALUES = st.lists(st.sampled_from([1, 2, 4, 'a\n"\\\u0001é', 2.5, True, (1, 2.5)]), min_size=1, max_size=3)


@st.composite
def secrets(draw):
    shared = {"epsilon": draw(POSITIVE), "window": draw(st.sampled_from([None, 3, "event", "first 4"]))}
    kind = draw(
        st.sampled_from(["ever", "always", "count", "followed_by", "pattern", "zone", "circle", "during", "joint"])
    )
    if kind == "joint":
        parts = [sv.secrets.ever(draw(VALUES), **shared), sv.secrets.count(draw(VALUES), 2, **shared)]
        return sv.secrets.joint(*parts)
    shared["one_sided"] = draw(st.booleans())
    if kind == "pattern":
        return sv.secrets.pattern("a . b", **shared)
    if kind == "circle":
        return sv.secrets.zone(centre=[48.8566, 2.3522], radius=300, **shared)
    if kind == "during":
        return sv.secrets.during(draw(VALUES), (22, 6), **shared | {"window": "day"})
    more = {"count": (3,), "followed_by": (draw(VALUES),)}.get(kind, ())
    return getattr(sv.secrets, kind)(draw(VALUES), *more, **shared)


@st.composite
def secret_policies(draw):
    declared = draw(st.lists(secrets(), min_size=1, max_size=3))
    withhold = draw(st.booleans())
    observers = draw(st.sampled_from([(), ("tourists.model", "a/b.model")]))
    epsilon = None if withhold else draw(st.none() | POSITIVE)
    return sv.Policy(epsilon, secrets=declared, withhold=withhold, observers=observers)


@given(plain_policies() | secret_policies())
def test_a_policy_is_the_same_through_toml_and_through_json(policy):
    assert sv.Policy.from_dict(json.loads(json.dumps(policy.to_dict()))) == policy
    import tomllib

    assert sv.Policy.from_dict(tomllib.loads(policy.to_toml())) == policy
    assert hash(policy) == hash(sv.Policy.from_dict(policy.to_dict()))
    assert str(policy)


def test_the_files_of_the_documentation_are_read(tmp_path):
    file = tmp_path / "policy.toml"
    file.write_text(
        "epsilon = 5.0            # a batch, about everything\nbatch = 5\n"
        "budget = { total = 20.0, window = { epsilon = 10.0, seconds = 3600 } }\n"
    )
    budget = sv.Budget(total=20.0, per_window=10.0, seconds=3600)
    assert sv.Policy.load(file) == sv.Policy(5.0, batch=5, budget=budget)
    file.write_text(
        'observers = ["other.model"]\n[[secret]]\never = ["health"]\nepsilon = 0.5\nwindow = 7\n'
        "[[secret]]\nzone = { latitude = 48.8566, longitude = 2.3522, metres = 300 }\nepsilon = 1.0\n"
    )
    health = sv.secrets.ever("health", epsilon=0.5, window=7)
    paris = sv.secrets.zone(centre=(48.8566, 2.3522), radius=300, epsilon=1.0)
    read = sv.Policy.load(file)
    assert read == sv.Policy(secrets=[health, paris], observers=(str(tmp_path / "other.model"),))
    read.save(tmp_path / "again.toml")
    assert sv.Policy.load(tmp_path / "again.toml") == read


@pytest.mark.parametrize(
    ("text", "said"),
    [
        ("epsilon = ", "policy.toml: is not TOML"),
        ("epsilom = 1.0", r"policy.toml: unknown setting 'epsilom'; did you mean epsilon\?"),
        ("xyz = 1.0", "policy.toml: unknown setting 'xyz'; expected one of batch, block, budget"),
        ('epsilon = "much"', "policy.toml: expected epsilon to be a finite number above 0, got str"),
        ("epsilon = 1.0\nbudget = { totally = 1.0 }", "policy.toml: expected a budget such as"),
        ("secret = 3", r"policy.toml: expected each secret of a policy as a table"),
        ("[[secret]]\nnever = 'a'", r"policy.toml: unknown setting 'never'; did you mean ever\?"),
        ("[[secret]]\ncount = 'a'\nepsilon = 1.0", "policy.toml: count needs at_least, for instance at_least = 3"),
        ("[[secret]]\nepsilon = 1.0", "policy.toml: a secret has exactly one of the settings ever, .*; got none"),
        ("[[secret]]\never = 'a'", "policy.toml: a declared secret has no epsilon"),
    ],
)
def test_a_bad_file_is_refused_in_one_line(tmp_path, text, said):
    (tmp_path / "policy.toml").write_text(text)
    with pytest.raises(InputError, match=said) as refused:
        sv.Policy.load(tmp_path / "policy.toml")
    assert "\n" not in str(refused.value)


AMISS = {  # one for each row of the table, in its order
    '"guarded" keeps declared secrets': lambda: sv.Policy(1.0, mechanism="guarded"),
    "expected epsilon, secrets, or a budget": lambda: sv.Policy(batch=2),
    'mechanism "optimal" keeps no declared secrets': lambda: sv.Policy(secrets=KEPT, mechanism="optimal"),
    "a declared secret has no epsilon": lambda: sv.Policy(secrets=sv.secrets.ever(4, epsilon=None)),
    "declared secrets take no batch and no budget": lambda: sv.Policy(secrets=KEPT, batch=2, mechanism="guarded"),
    "a block takes no batch, secrets": lambda: sv.Policy(1.0, block=3, batch=2),
    "blocks are released by the mechanism": lambda: sv.Policy(1.0, block=3, mechanism="optimal"),
    "expected a block of at most": lambda: sv.Policy(1.0, block=2000),
    "withhold, observers and side_information say how": lambda: sv.Policy(1.0, withhold=True),
    "the truth or nothing": lambda: sv.Policy(1.0, secrets=KEPT, withhold=True),
    "chooses the epsilon": lambda: sv.Policy(1.0, budget=sv.Budget(total=2.0, over=3)),
    '"balanced" releases one symbol at a time': lambda: sv.Policy(1.0, batch=2, mechanism="balanced"),
    'mechanism "crr" does not guarantee its ε': lambda: sv.Policy(1.0, mechanism="crr", budget=3.0),
    'mechanism "mine" has no LDP level': lambda: sv.Policy(
        1.0, mechanism=_without_ldp(), budget=sv.Budget(ldp_total=3.0)
    ),
}


def _without_ldp():
    import dataclasses

    return dataclasses.replace(sv.mechanisms.optimal, name="mine", ldp=math.inf)


@pytest.mark.parametrize("said", AMISS)
def test_what_does_not_go_together_is_refused_in_one_line(said):
    with pytest.raises(InputError, match=f".*{said}") as refused:
        AMISS[said]()
    assert "\n" not in str(refused.value)


def test_every_row_of_the_table_has_its_case():
    rows = inspect.getsource(policies.conflicts).split("yield")[1:]
    assert len(rows) == len(AMISS) <= 20
    for said, row in zip(AMISS, rows, strict=True):
        assert said.partition(" ")[2][-12:] in row or said in row


@pytest.mark.parametrize(
    ("wrong", "said"),
    [
        *(({"epsilon": wrong}, "expected epsilon to be a finite number above 0")
          for wrong in (0, 0.0, -1, -1e-9, math.inf, -math.inf, math.nan, "0.5", "x", [1.0], True)),
        ({"epsilon": 17.0}, "expected epsilon of at most 16"),
        ({"epsilon": 1e-9}, "with less a release only repeats the best guess"),
        ({"epsilon": 1.0, "batch": 0}, "expected batch to be a whole number"),
        ({"epsilon": 1.0, "block": 1.5}, "expected block to be a whole number"),
        ({"secrets": "health"}, "expected secrets as sv.secrets makes them"),
        ({"secrets": KEPT, "observers": 3}, "expected observers as models"),
        ({"epsilon": 1.0, "distortion": "cosine"}, "expected a distortion among hamming"),
        ({"epsilon": 1.0, "mechanism": 7}, "expected the name of a mechanism, or a mechanism"),
        ({"epsilon": 1.0, "mechanism": "best"}, "expected a mechanism among"),
        ({"epsilon": 1.0, "withhold": "yes"}, "expected withhold to be true or false"),
        ({"epsilon": 1.0, "budget": "much"}, "expected total to be a finite number above 0"),
        ({"budget": sv.Budget(total=1.0)}, "expected epsilon, secrets, or a budget with total and over"),
        *(({"secrets": KEPT, "side_information": wrong}, "expected side_information from 0 to 100")
          for wrong in (701.0, -0.1, math.nan, "much", True)),
    ],
)  # fmt: skip
def test_a_field_that_cannot_be_is_refused_by_its_name(wrong, said):
    with pytest.raises(InputError, match=said):
        sv.Policy(**wrong)


def test_a_wrong_second_argument_is_caught_where_it_is_made():
    with pytest.raises(InputError, match=r"^expected a Policy; for ε write epsilon=1$"):
        sv.Session(MODEL, 1.0)
    with pytest.raises(InputError, match="expected a Policy, got str; write mechanism="):
        sv.Session(MODEL, "optimal")
    with pytest.raises(InputError, match=r"expected a Policy, got NoneType|expected epsilon"):
        sv.Session(MODEL)
    with pytest.raises(InputError, match="put epsilon into the Policy"):
        sv.Session(MODEL, sv.Policy(1.0), epsilon=2.0)
    with pytest.raises(InputError, match="expected a MarkovModel"):
        sv.Session([0.5, 0.5], sv.Policy(1.0))


def test_an_object_cannot_be_saved_by_name(tmp_path):
    mine = sv.Policy(1.0, distortion=Distortion("mine", table=COSTS))
    for policy, what in ((mine, "distortion"), (sv.Policy(1.0, mechanism=_without_ldp()), "mechanism")):
        with pytest.raises(InputError, match=f"to name its {what}, got an object"):
            policy.save(tmp_path / "policy.toml")
    with pytest.raises(InputError, match="to name its observers"):
        sv.Policy(secrets=KEPT, observers=OTHER).to_toml()
    assert sv.Policy(1.0, mechanism=sv.mechanisms.optimal).to_dict()["mechanism"] == "optimal"


def test_a_policy_meets_a_model_once():
    policy = sv.Policy(1.0)
    assert policy.on(MODEL) is policy.on(MODEL)
    assert policy.on(OTHER).model is OTHER


def test_observers_are_read_from_their_files(tmp_path):
    OTHER.save(tmp_path / "other.model")
    (tmp_path / "policy.toml").write_text(
        'observers = ["other.model"]\n[[secret]]\never = 4\nepsilon = 0.5\nwindow = 3'
    )
    terms = sv.Policy.load(tmp_path / "policy.toml").on(MODEL)
    assert [each.fingerprint for each in terms.observers] == [OTHER.fingerprint]
    assert len(terms.trackers.rows) == 2


@pytest.mark.slow
@settings(deadline=None)
@given(st.floats(0.01, 50.0), st.integers(1, 2000), st.floats(1e-9, 0.5))
def test_a_budget_with_delta_takes_the_largest_epsilon_of_the_tightest_theorem(total, over, delta):
    plain, chosen = epsilon_for(total, over), epsilon_for(total, over, delta)
    assert plain == total / over
    assert chosen >= plain
    if plain < 16.0:
        assert chosen <= 16.0
        assert sv.compose(chosen, over, delta).walk <= total * (1 + 1e-12)
        if chosen < 15.9:
            assert sv.compose(chosen * (1 + 1e-9), over, delta).walk >= total * (1 - 1e-9)


def test_a_total_that_may_fail_is_for_so_many_releases_and_no_more():
    budget = sv.Budget(total=5.0, delta=0.01, over=100)
    session = sv.Session(MODEL, budget=budget, seed=3)
    released = [session.release(2) for _ in range(100)]
    account = session.account
    assert account.epsilon_spent == pytest.approx(100 * budget.epsilon)
    assert account.epsilon_spent > 5.0
    assert "100 releases together, with probability 1 - 0.01, move what is believed" in account.sentence
    session.release(4)
    assert session.account.epsilon_spent == account.epsilon_spent
    assert session.account.leakage == account.leakage
    assert len(released) == 100
    stopping = sv.Session(MODEL, budget=sv.Budget(total=2.0, delta=0.1, over=1, when_spent="stop"), seed=3)
    assert stopping.release(1) is not None
    assert stopping.release(1) is None


@pytest.mark.slow
@given(plain_policies())
def test_what_is_written_down_is_read_back_as_the_same_terms(policy):
    terms = policy.on(MODEL)
    saved = json.loads(json.dumps(terms.to_dict()))
    again = saved_terms(saved, MODEL)
    assert again.to_dict() == saved == terms.to_dict()
    assert again.signature == terms.signature
    assert (again.budget, again.batch) == (terms.budget, terms.batch)
    refuse_other(saved, again.to_dict(), "the file", "a new one")


def test_the_text_that_randomness_and_state_files_hang_on_stays_as_it_is():
    terms = sv.Policy(0.5, budget=3.0).on(sv.MarkovModel([0.5, 0.5], [[0.9, 0.1], [0.1, 0.9]]))
    assert terms.signature == (
        '{"budget": {"total": 3.0}, '
        '"costs": "d8156bae0c4243d3742fc4e9774d8aceabe0410249d720c855f98afc88ff846c", '
        '"distortion": "hamming", "epsilon": 0.5, "mechanism": "optimal", "model": '
        '"ef9e380602cc531f934d40a2bd547030be434cd959c8ee7b28b762f38be00fb0", "observers": []}'
    )


def test_another_model_and_damaged_parts_are_refused_in_one_line():
    saved = sv.Policy(0.5).on(MODEL).to_dict()
    with pytest.raises(ModelError, match="not the one the release was made with"):
        saved_terms(saved, OTHER)
    for part in saved:
        with pytest.raises(DataError, match="missing or damaged"):
            saved_terms({name: value for name, value in saved.items() if name != part}, MODEL)
    for wrong in ({"block": "x"}, {"budget": {"everything": 1.0}}, {"mechanism": 7}, {"epsilon": "much"}):
        with pytest.raises(InputError):
            saved_terms(saved | wrong, MODEL)
    kept = sv.Policy(secrets=KEPT, observers=OTHER).on(MODEL).to_dict()
    with pytest.raises(ModelError, match="observers with models of their own"):
        saved_terms(kept, MODEL)


def test_all_parts_that_differ_are_named():
    first, second = (sv.Policy(e, budget=b).on(MODEL).to_dict() for e, b in ((1.0, 2.0), (2.0, 3.0)))
    with pytest.raises(InputError, match=r"x\.db: was begun with another budget, epsilon; use"):
        refuse_other(first, second, "x.db:", "a new file")
    with pytest.raises(InputError, match=r"another side_information; .* first run \(with key=, where it had a key\)"):
        refuse_other(first, first | {"side_information": 0.0}, "x.db:", "a new file")
    with pytest.raises(ModelError, match="belongs to another model"):
        refuse_other(first, second | {"model": "other"}, "x.db:", "a new file")


def test_a_whole_number_is_the_same_promise():
    """Files, signatures and so randomness do not depend on how a number was typed."""
    model = sv.MarkovModel([0.5, 0.5], [[0.9, 0.1], [0.1, 0.9]])
    typed, said = (sv.Policy(epsilon=one, budget=sv.Budget(total=9 * one)).on(model) for one in (1, 1.0))
    assert typed.signature == said.signature
    typed, said = (sv.Policy(secrets=[sv.secrets.ever(0, epsilon=one, window=3)]).on(model) for one in (1, 1.0))
    assert typed.signature == said.signature
