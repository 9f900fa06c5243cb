"""ε is said by whoever asks for a release: nothing takes one by itself."""

import inspect
import pkgutil
from importlib import import_module

import pytest

import seqveil as sv
from seqveil.core.errors import InputError
from seqveil.core.secrets.declared import Unsaid

PAIR = sv.MarkovModel([0.5, 0.5], [[0.9, 0.1], [0.1, 0.9]])


@pytest.mark.parametrize("mechanism", ["optimal", "auto", "tree"])
@pytest.mark.parametrize(
    "ask",
    [
        lambda mechanism: sv.Session(PAIR, mechanism),
        lambda mechanism: sv.Session(PAIR, mechanism, batch=3),
        lambda mechanism: sv.Session(PAIR, mechanism, budget=2.0),
        lambda mechanism: sv.Setting.of(PAIR, mechanism),
        lambda mechanism: sv.decode_stream(PAIR, [0, 1], mechanism),
        lambda mechanism: sv.decode_stream(PAIR, [], mechanism),
    ],
)
def test_whoever_says_no_epsilon_is_asked_for_it_in_one_line(ask, mechanism):
    with pytest.raises(InputError, match=r"expected epsilon, .* try epsilon=1\.0") as caught:
        ask(mechanism)
    assert "\n" not in str(caught.value)


def test_a_secret_without_a_total_is_accounted_for_and_not_kept():
    secret = sv.secrets.ever(1, window="first 4")
    assert not secret.has_total
    assert "nothing is promised" in secret.sentence
    with pytest.raises(InputError, match="no total"):
        sv.Session(PAIR, "guarded", secrets=secret)
    session = sv.Session(PAIR, epsilon=0.5, secrets=secret, seed=1)
    session.release(1)
    assert session.secrets[0].log_odds != 0
    saved = session.setting.to_dict()
    assert saved["secrets"][0]["epsilon"] is None
    assert not sv.Setting.from_dict(saved, PAIR).secrets[0].has_total


def test_no_function_of_the_core_and_the_rooms_above_has_an_epsilon_of_its_own():
    """Every parameter called epsilon has no default, None, or one that nothing is released with."""
    found = []
    for info in pkgutil.walk_packages(sv.__path__, "seqveil."):
        if info.name.startswith(("seqveil.core", "seqveil.engine", "seqveil.receiver")):
            module = import_module(info.name) if "compiled" not in info.name else None
            for name, each in vars(module).items() if module is not None else ():
                if callable(each) and getattr(each, "__module__", "") == info.name:
                    found += [(info.name, name)] if _takes_one(each) else []
    assert found == []


def _takes_one(function) -> bool:
    try:
        given = inspect.signature(function).parameters.get("epsilon")
    except (TypeError, ValueError):
        return False
    if given is None or given.default is inspect.Parameter.empty or given.default is None:
        return False
    return not isinstance(given.default, Unsaid)
