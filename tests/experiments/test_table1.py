"""Table 1: enumerated examples agree with what is known of them, counted work grows as it must."""

import numpy as np
import pytest

from experiments import claims, growth, notions, table1
from experiments.context import Context, dumps
from seqveil import MarkovModel, mechanisms

pytestmark = pytest.mark.slow


@pytest.fixture(scope="module")
def runs(tmp_path_factory):
    growth_tries, growth.TRIES = growth.TRIES, 1
    contexts = [Context(tmp_path_factory.mktemp(name), "table1", quick=True) for name in ("one", "two")]
    found = [table1.run(context) for context in contexts]
    growth.TRIES = growth_tries
    return found, contexts


def test_two_runs_give_the_same_numbers_and_keep_seconds_apart(runs):
    (one, two), (context, _) = runs
    assert dumps(one) == dumps(two)
    slopes = [name for name in context.timings if name.startswith("table1.seconds of LDP")]
    assert slopes == ["table1.seconds of LDP, n: exponent", "table1.seconds of LDP, n: half-width"]


def test_every_cell_is_judged(runs):
    result = runs[0][0]
    assert len(result["claims"]) == len(table1.ROWS) * len(table1.COLUMNS)
    for claim, row in zip(result["claims"], np.repeat(table1.ROWS, len(table1.COLUMNS)), strict=True):
        assert claim["claim"].startswith(f"{row} ")
        assert claim["figures"]
        assert claim["reason"]
    broken = [claim["claim"] for claim in result["claims"] if claim["verdict"] != claims.HOLDS]
    assert broken == ["MIP composes sequentially: no", "SIP costs O(|X|) a release"]


def test_enumeration_agrees_with_bayes_rule_by_hand():
    model = MarkovModel([0.7, 0.3], [[0.6, 0.4], [0.2, 0.8]])
    stream = notions.enumerate_stream(model, mechanisms.randomized_response, 1.0, 2)
    disclosed = np.e / (1 + np.e)
    table = np.array([[disclosed, 1 - disclosed], [1 - disclosed, disclosed]])
    np.testing.assert_allclose(stream.distribution, [0.42, 0.28, 0.06, 0.24])
    np.testing.assert_allclose(stream.table, np.kron(table, table), atol=1e-9)
    np.testing.assert_allclose(stream.table.sum(1), 1.0)
    np.testing.assert_allclose(stream.lifts, stream.steps, atol=1e-9)


@pytest.mark.parametrize("name", ["optimal", "crr", "mutual_information", "randomized_response"])
def test_steps_add_up_to_the_stream(name):
    stream = notions.enumerate_stream(notions.UNEVEN, mechanisms.get(name), 0.7, 3)
    finite = np.isfinite(stream.lifts)
    np.testing.assert_allclose(stream.lifts[finite], stream.steps[finite], atol=1e-9)
    assert stream.information == pytest.approx(stream.joint_information, abs=1e-9)


def test_examples_and_counterexamples():
    ldp, sip, fish = notions.ldp_composes(), notions.sip_composes(), notions.pufferfish_composes()
    assert ldp["of the pair, in ε"] == pytest.approx(2)
    assert 1 < ldp["of the first event alone, in ε"] <= ldp["bound by temporal leakage, in ε"] + 1e-9
    assert sip["optimal: leakage of the stream over Σε"] <= 1 < 1.1 < sip["crr: leakage of the stream over Σε"]
    assert sip["optimal, fair independent bits: leakage over Σε"] == pytest.approx(1)
    assert fish["both: leakage about a bit"] == np.inf
    assert fish["X1⊕X2 of three fair bits: leakage about any bit"] == 0.0
    one, two = (fish[f"{name}: leakage about an event, ε = 1"] for name in ("one count", "two counts"))
    assert one < two <= 2 * one
    assert notions.guarantees()["mutual_information: leakage at (.999, .001), ε = 0.01"] == np.inf
    mip = notions.mip_composes()
    assert mip["a hidden coin used twice: I of both"] == pytest.approx(np.log(2))
    assert mip["largest step, ε = 0.1"] <= 0.1
