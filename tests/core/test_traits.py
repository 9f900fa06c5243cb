"""Traits: types that answer a question about the person, by enumeration over all paths of type and symbol."""

from __future__ import annotations

import itertools
import json
import math
from dataclasses import dataclass
from fractions import Fraction

import numpy as np
import pandas as pd
import pytest
from scipy.optimize import linprog

import seqveil as sv
from compiling import restored, use  # noqa: F401 -- it restores after every test
from reference.mixtures import mixture
from seqveil.core import filtering
from seqveil.core.distortion import hamming
from seqveil.core.errors import DataError, InputError, ModelError
from seqveil.core.mechanisms.base import Batch
from seqveil.core.mechanisms.codebook import support
from seqveil.core.secrets import SecretTrackers
from seqveil.core.secrets.tables import FIRST
from seqveil.engine.secrets import guarded_table
from seqveil.interfaces.choosing import held_out_check

HEATING = sv.secrets.trait("heating", epsilon=0.5)


@dataclass(frozen=True)
class People:
    """Chains of types, their shares, the chance to change type and everyone's answer: the process itself, no model."""

    priors: np.ndarray  # (K, n)
    rows: np.ndarray  # (K, n, n)
    shares: np.ndarray  # (K,)
    switch: float
    answers: list[str]

    @classmethod
    def drawn(cls, seed: int, n: int, answers: list[str], switch: float, spread: float = 0.5) -> People:
        rng, types = np.random.default_rng(seed), len(answers)
        rows = 0.95 * rng.dirichlet(np.full(n, spread), (types, n)) + 0.05 / n
        return cls(rng.dirichlet(np.ones(n), types), rows, rng.dirichlet(np.full(types, 4.0)), switch, answers)

    @property
    def n(self) -> int:
        return self.priors.shape[1]

    @property
    def model(self) -> sv.MarkovModel:
        parts = [sv.MarkovModel(first, rows) for first, rows in zip(self.priors, self.rows, strict=True)]
        return mixture(parts, self.shares, self.switch, trait=("heating", self.answers))

    def given(self, answer: str, columns: list[np.ndarray], number: type = float) -> float | Fraction:
        """Pr(y_1..t | answer): the sum over all paths of (type, symbol) of such a person; exact with `Fraction`."""
        own = [k for k, named in enumerate(self.answers) if named == answer]
        shares = {k: number(self.shares[k]) for k in own}
        first = {(k, x): shares[k] * number(self.priors[k, x]) for k in own for x in range(self.n)}
        total, switch, seen = sum(first.values()), number(self.switch), [list(map(number, one)) for one in columns]
        chance = {
            (here, there): (1 - switch) * (number(self.rows[(*here, there[1])]) if here[0] == there[0] else number(0))
            + switch * first[there] / total
            for here in first
            for there in first
        }
        found = number(0)
        for path in itertools.product(first, repeat=len(columns)):
            weight = first[path[0]]
            for here, there in itertools.pairwise(path):
                weight *= chance[here, there]
            for (_, x), column in zip(path, seen, strict=True):
                weight *= column[x]
            found += weight
        return found / total

    def log_odds(self, columns: list[np.ndarray], number: type = float) -> float:
        """log Pr(y | second)/Pr(y | first) of two answers; of more the log of the largest ratio."""
        given = [self.given(answer, columns, number) for answer in sorted(set(self.answers))]
        ratio = given[1] / given[0] if len(given) == 2 else max(given) / min(given)
        return math.log(ratio)


CASES = [
    People.drawn(1, 3, ["gas", "electric"], 0.0),
    People.drawn(3, 2, ["gas", "electric", "electric", "gas"], 0.2),
    People.drawn(4, 3, ["gas", "electric", "wood"], 0.0),
    People.drawn(5, 2, ["wood", "gas", "electric", "gas"], 0.1),
]


@pytest.mark.parametrize("people", CASES, ids=lambda people: "-".join(people.answers))
def test_the_account_equals_enumeration_whatever_is_released(people):
    tracker, rng, columns = SecretTrackers.start(people.model, HEATING), np.random.default_rng(0), []
    prior = [sum(people.shares[k] for k, own in enumerate(people.answers) if own == answer)
             for answer in sorted(set(people.answers))]  # fmt: skip
    assert tracker.rows[0][0].latest.prior == pytest.approx(prior[1] if len(prior) == 2 else tuple(prior), abs=1e-12)
    for _ in range(4):
        columns.append(rng.random(people.n) + 1e-3)
        tracker = tracker.observe(columns[-1])
        assert tracker.rows[0][0].latest.log_odds == pytest.approx(people.log_odds(columns), abs=1e-9)
    assert tracker.limit is None  # however many events come


@pytest.mark.parametrize("people", CASES, ids=lambda people: "-".join(people.answers))
def test_no_outcome_breaks_a_trait_from_the_integers_of_its_tables(people):
    """All outcomes, exactly: the ratio between any two values is within e^ε, and the account says what it is."""
    terms = sv.Policy(secrets=HEATING).on(people.model)
    todo, worst = [(terms.trackers, [])], 0.0
    while todo:
        trackers, columns = todo.pop()
        if columns:
            exact = people.log_odds([[int(w) for w in column] for column in columns], Fraction)
            worst = max(worst, abs(exact))
            assert trackers.rows[0][0].latest.log_odds == pytest.approx(exact, abs=1e-9)
        if len(columns) < 3:
            table = guarded_table(terms, trackers).full()
            assert (table >= 0).all()
            assert (table.sum(1) == 2**62).all()
            todo += [(trackers.observe(table[:, y]), [*columns, table[:, y]]) for y in range(table.shape[1])]
    assert 0.15 < worst <= 0.5


@pytest.mark.parametrize("people", CASES, ids=lambda people: "-".join(people.answers))
def test_a_question_with_k_answers_is_kept_at_least_error(people):
    """min Σ β(x) Q(y|x) [x ≠ y] with m(y) ≤ Pr(y | a) ≤ e^ε m(y) for every answer a, by the obvious program."""
    terms, n = sv.Policy(secrets=HEATING).on(people.model), people.n
    given = np.array([[people.given(answer, [np.eye(n)[x]]) for x in range(n)] for answer in set(people.answers)])
    belief = people.shares @ people.priors
    cost = np.concatenate([(belief[:, None] * (1 - np.eye(n))).ravel(), np.zeros(n)])  # Q(y|x), then m(y)
    at_least = np.concatenate([np.einsum("ax,yz->ayxz", -given, np.eye(n)).reshape(-1, n * n),
                               np.tile(np.eye(n), (len(given), 1))], axis=1)  # fmt: skip
    at_most = -at_least * np.append(np.ones(n * n), np.full(n, math.exp(FIRST * HEATING.epsilon)))
    rows = np.concatenate([np.kron(np.eye(n), np.ones(n)), np.zeros((n, n))], axis=1)
    found = linprog(cost, np.concatenate([at_least, at_most]), np.zeros(2 * len(at_least)), rows, np.ones(n))
    assert guarded_table(terms, terms.trackers).error == pytest.approx(found.fun, abs=1e-6)


@pytest.mark.slow
def test_nothing_ever_stops_and_a_restart_resets_nothing(tmp_path):
    """Hundreds of events, in several runs over one state file: the odds stay within ε, and the account goes on."""
    people = CASES[1]
    model, policy = people.model, sv.Policy(secrets=HEATING)
    truth, whole, made = model.sample(600, 1, seed=1)[0], sv.Streams(model, policy, seed=1), []
    whole.release(["ann"] * 600, truth.tolist())
    for part in np.split(truth, 3):
        with sv.Streams(model, policy, store=tmp_path / "s.db", seed=1) as streams:
            before = streams.account("ann")
            assert (0 if before is None else before.events) == 200 * len(made)
            made.append(streams.release(["ann"] * 200, part.tolist()))
            kept = streams.account("ann").secrets[0]
    assert kept.log_odds == whole.account("ann").secrets[0].log_odds
    assert 0.2 < max(kept.highest, -kept.lowest) <= 0.5
    assert "between any two values" in kept.sentence


# the model


def dense(model: sv.MarkovModel) -> np.ndarray:
    """P, entry by entry."""
    table = model.chain.toarray()
    for source in range(model.size):
        for state, chance in zip(model.base_state, model.base, strict=True):
            if model.answers[source] == model.answers[state]:
                table[source, state] += model.backoff[source] * chance
    return table


@pytest.mark.parametrize("compiled", [True, False])
def test_every_use_of_the_chain_is_that_of_the_dense_one(compiled):
    use(compiled)
    rng, model = np.random.default_rng(0), CASES[3].model
    table, some = dense(model), rng.dirichlet(np.ones(model.size), 9)
    assert np.allclose(table.sum(1), 1)
    assert np.allclose(model.advance(some), some @ table, atol=1e-15)
    assert np.allclose(filtering.pull(model, some), some @ table.T, atol=1e-15)
    columns = rng.random((9, model.n))
    moved = (some * columns[:, model.newest]) @ table
    assert np.allclose(filtering.move(model, some, columns)[0], moved / moved.sum(1, keepdims=True), atol=1e-14)
    logs = np.where(some > 0.2, -500.0, some)  # states too faint for a float
    wanted = np.exp(np.where(logs < 0, logs, -np.inf) - 500) @ table + np.where(logs < 0, 0.0, logs) @ table
    assert np.allclose(filtering.clear(filtering.carry(model, logs, np.ones(model.n))), wanted, atol=1e-15)
    for largest, pick in ((True, np.max), (False, np.min)):
        reached = [[pick(row[table[:, state] > 0]) for state in range(model.size)] for row in some]
        assert np.array_equal(model.spread(some, largest), reached)
    assert not model.rules_out
    assert not model.full_support


def test_nobody_ever_changes_the_answer():
    gas, electric = (sv.MarkovModel(first, [[0.5, 0.5], [0.5, 0.5]]) for first in ([1.0, 0.0], [0.0, 1.0]))
    model = mixture([gas, electric], [0.5, 0.5], 0.5, trait=("heating", ["gas", "electric"]))
    drawn = model.sample(400, 300, seed=1)
    shares = drawn[:, 1:].mean(1)  # half of the steps begin anew, with the one symbol that the answer begins with
    assert np.abs(shares - np.where(drawn[:, 0] == 1, 0.75, 0.25)).max() < 0.12
    # batches of such a stream have the probabilities of the chain
    found = support(Batch(model, model.initial, 3, 1.0, hamming()), 10)
    wanted = [math.exp(model.log_likelihood(codes)) for codes in found.batches]
    assert found.mass == pytest.approx(wanted, abs=1e-12)


def test_the_model_file_keeps_the_trait(tmp_path):
    model = CASES[2].model
    model.save(tmp_path / "m.model")
    again = sv.MarkovModel.load(tmp_path / "m.model")
    assert again.trait == model.trait
    assert again.trait.answers == ("electric", "gas", "wood")
    assert again.fingerprint == model.fingerprint
    other = mixture([sv.MarkovModel(a, b) for a, b in zip(CASES[2].priors, CASES[2].rows, strict=True)],
                                   CASES[2].shares, trait=("heating", ["gas", "oil", "wood"]))  # fmt: skip
    assert other.fingerprint != model.fingerprint
    with pytest.raises(ModelError, match="does not fit its types"):
        _altered(tmp_path / "m.model", {"name": "heating", "answers": ["a", "b"], "types": [1, 1]})


def _altered(path, trait):
    with np.load(path) as file:
        arrays = dict(file)
    header = json.loads(arrays["header"].tobytes()) | {"trait": trait}
    arrays["header"] = np.frombuffer(json.dumps(header).encode(), np.uint8)
    with open(path, "wb") as out:
        np.savez_compressed(out, **arrays)
    sv.MarkovModel.load(path)


# the fit


def labelled(people: People, count: int, length: int, seed: int = 0) -> tuple[list[list[int]], list[str]]:
    rng, kinds, streams = np.random.default_rng(seed), [], []
    for k, share in enumerate(people.shares):
        some = max(60, round(share * count))
        part = sv.MarkovModel(people.priors[k], people.rows[k])
        streams += part.sample(length, some, seed=int(rng.integers(1 << 30))).tolist()
        kinds += [people.answers[k]] * some
    return streams, kinds


def test_a_fit_has_types_of_its_own_for_each_answer_and_leaves_out_who_has_none():
    streams, labels = labelled(CASES[3], 400, 40)
    unknown = [None, "", float("nan")]
    model = sv.MarkovModel.fit(
        [*streams, [0, 1], [1, 1], [0, 0]], alphabet=range(2), trait=("heating", [*labels, *unknown]), types=2
    )
    assert model.trait.answers == ("electric", "gas", "wood")
    assert model.trait.types[1] == 2
    assert model.origin["people_without_answer"] == 3
    shares = [labels.count(answer) / len(labels) for answer in model.trait.answers]
    assert np.bincount(model.answers, model.initial) == pytest.approx(shares)
    alone = sv.MarkovModel.fit(
        [s for s, own in zip(streams, labels, strict=True) if own == "gas"], alphabet=range(2), types=2
    )
    gas = model.answers == 1  # the mixture of the people of an answer alone, beside the others
    assert model.initial[gas] / shares[1] == pytest.approx(alone.initial)
    assert dense(model)[np.ix_(gas, gas)] == pytest.approx(alone.advance(np.eye(alone.size)))


@pytest.mark.slow
def test_the_number_of_types_is_chosen_on_held_out_people():
    streams, labels = labelled(People.drawn(7, 4, ["electric"] * 4, 0.0, 0.2), 1200, 60)
    single, names = labelled(People.drawn(8, 4, ["gas"], 0.0), 300, 60)
    model = sv.MarkovModel.fit(streams + single, alphabet=range(4), trait=("heating", labels + names))
    assert model.trait.types[0] >= 3
    assert model.trait.types[1] == 1


@pytest.mark.parametrize(
    ("labels", "types", "line"),
    [
        (["gas"] * 120, None, "two or more answers"),
        (["gas"] * 100 + ["wood"] * 20, None, "at least 50 people"),
        (["gas"] * 60 + ["wood"] * 59, None, "one label for each of the 120 streams"),
        ([str(k % 70) for k in range(120)], None, "at least 50 people"),
        (["gas"] * 60 + ["wood"] * 60, 0, "expected types to be a whole number"),
        (["gas", pd.NA, None, float("nan"), "gas", "gas"] * 20, None, "two or more answers; got 1"),
        (iter(["gas", "wood"]), None, "one label for each of the 120 streams; got 2"),
    ],
)
def test_labels_that_make_no_trait_are_refused_in_a_line(labels, types, line):
    with pytest.raises((DataError, ModelError), match=line) as caught:
        sv.MarkovModel.fit([[0, 1, 0]] * 120, alphabet=range(2), trait=("heating", labels), types=types)
    assert "\n" not in str(caught.value)


def alike(*shares: float, answers: str = "ab") -> sv.MarkovModel:
    return mixture([sv.MarkovModel([1.0], [[1.0]])] * len(shares), shares, trait=("heating", answers))


@pytest.mark.parametrize(
    ("make", "line"),
    [
        (lambda: sv.secrets.trait("", epsilon=1.0), "named as in the model"),
        (lambda: sv.secrets.from_dict({"trait": "heating", "window": 5}), "has no setting 'window'"),
        (lambda: sv.secrets.joint(HEATING, sv.secrets.ever(1, epsilon=0.5)), "about events"),
        (lambda: sv.Session(CASES[0].model, secrets=[sv.secrets.trait("income", epsilon=1.0)]), "does not know this"),
        (lambda: sv.Session(sv.MarkovModel([1.0], [[1.0]]), secrets=[HEATING]), "does not know this trait"),
        (lambda: sv.Session(alike(1 - 1e-13, 1e-13), secrets=[HEATING]), "certain or impossible"),
        (lambda: alike(0.5, 0.5, answers="aa"), "two or more different answers"),
        (lambda: sv.MarkovModel.fit([[0, 1]] * 3, trait=["y", "n", "y"]), "expected a trait as its name and"),
    ],
)  # fmt: skip
def test_what_is_no_trait_is_refused_in_a_line(make, line):
    with pytest.raises((InputError, DataError, ModelError), match=line) as caught:
        make()
    assert "\n" not in str(caught.value)


def test_a_declared_trait_in_words_and_toml(tmp_path):
    policy = sv.Policy(secrets=[HEATING])
    policy.save(tmp_path / "policy.toml")
    assert 'trait = "heating"' in (tmp_path / "policy.toml").read_text()
    assert sv.Policy.load(tmp_path / "policy.toml") == policy
    assert "between any two values move by at most a factor of 1.65" in str(policy)
    assert sv.secrets.from_dict({"trait": "heating", "epsilon": 0.5}) == HEATING


# files and commands


@pytest.mark.slow
def test_from_a_column_of_labels_to_an_audit(tmp_path, monkeypatch, seqveil):
    """fit --trait, release and audit on files; an attack needs the labels in its truth file, which no release has."""
    monkeypatch.chdir(tmp_path)
    for name, seed in (("past.csv", 1), ("today.csv", 2)):
        streams, labels = labelled(CASES[0], 200, 8, seed)
        rows = [f"p{k},{t},v{x},{'' if k % 50 == 7 else labels[k]}\n" for k, own in enumerate(streams)
                for t, x in enumerate(own)]  # fmt: skip
        (tmp_path / name).write_text("user,seq,value,heating\n" + "".join(rows))
    fitted = seqveil("fit", "past.csv", "-o", "m.model", "--trait", "heating")
    unknown = len(range(7, len(streams), 50))
    assert f"{unknown} users without an answer are left out" in fitted.out
    assert sv.fit("past.csv", trait="heating").fingerprint == sv.MarkovModel.load("m.model").fingerprint
    compared = seqveil("fit", "past.csv", "-o", "checked.model", "--trait", "heating", "--context", "auto")
    assert f"{unknown} users without an answer are left out" in compared.out
    assert held_out_check(sv.MarkovModel.load("checked.model"))["people"] == len(streams) // 5
    kept = ("--secret", "trait:heating", "--secret-epsilon", 1)
    assert seqveil("release", "today.csv", "-m", "m.model", *kept, "-o", "out.csv").code == 0
    assert "electric" not in (tmp_path / "out.csv").read_text()
    assert "covers this file only" in json.loads((tmp_path / "out.csv.meta.json").read_text())["guarantee"]
    stated = seqveil("release", "today.csv", "-m", "m.model", *kept, "-o", "more.csv", "--state", "s.db", "--json")
    assert "between any two values" in stated.out
    assert "covers this file only" in stated.out
    audited = seqveil("audit", "out.csv", "-m", "m.model")
    assert "every declared secret within its ε" in audited.out
    assert "between any two values" in audited.out
    text = (tmp_path / "today.csv").read_text()
    (tmp_path / "bare.csv").write_text("".join(line.rpartition(",")[0] + "\n" for line in text.splitlines()))
    lost = seqveil("attack", "out.csv", "--truth", "bare.csv", "--secret", "trait:heating")
    assert lost.code
    assert "needs its column in the raw file" in lost.err
    assert "no column 'heeting'" in (typo := seqveil("fit", "past.csv", "-o", "x.model", "--trait", "heeting").err)
    assert "name yours with --trait" in typo
    (tmp_path / "two.csv").write_text(text.replace(",gas\n", ",electric\n", 1))
    changed = seqveil("fit", "two.csv", "-o", "x.model", "--trait", "heating")
    assert changed.code
    assert "two answers to the trait" in changed.err
