"""ε is said by whoever asks for a release: nothing takes one by itself."""

import inspect
import pkgutil
from importlib import import_module

import pytest

import seqveil as sv
from seqveil.core.errors import InputError
from seqveil.core.slots import Slots
from seqveil.interfaces.commands.options import SettingOptions
from seqveil.interfaces.studio.ask import Ask

CODES = sv.Alphabet.codes(2).with_slots(Slots(21_600, empty="hold"))
PAIR = sv.MarkovModel([0.5, 0.5], [[0.9, 0.1], [0.1, 0.9]], alphabet=CODES)


@pytest.mark.parametrize("mechanism", ["optimal", "auto", "tree"])
@pytest.mark.parametrize(
    "ask",
    [
        lambda mechanism: sv.Session(PAIR, mechanism=mechanism),
        lambda mechanism: sv.Session(PAIR, mechanism=None if mechanism == "optimal" else mechanism, batch=3),
        lambda mechanism: sv.Session(PAIR, mechanism=mechanism, budget=2.0),
        lambda mechanism: sv.Policy(mechanism=mechanism).on(PAIR),
        lambda mechanism: sv.decode_stream(PAIR, [0, 1], mechanism=mechanism),
        lambda mechanism: sv.decode_stream(PAIR, [], mechanism=mechanism),
    ],
)
def test_whoever_says_no_epsilon_is_asked_for_it_in_one_line(ask, mechanism):
    with pytest.raises(
        InputError, match=r"expected epsilon, .* got none of them; say for instance epsilon=1\.0"
    ) as caught:
        ask(mechanism)
    assert "\n" not in str(caught.value)


MAKERS = {
    "ever": lambda **said: sv.secrets.ever(1, **said),
    "always": lambda **said: sv.secrets.always(1, **said),
    "count": lambda **said: sv.secrets.count(1, 2, **said),
    "followed_by": lambda **said: sv.secrets.followed_by(0, then=1, **said),
    "pattern": lambda **said: sv.secrets.pattern("0 1", **said),
    "zone": lambda **said: sv.secrets.zone([1], **said),
    "during": lambda **said: sv.secrets.during(1, (6, 18), **said),
}


@pytest.mark.parametrize("make", MAKERS.values(), ids=MAKERS)
def test_a_secret_without_epsilon_is_refused_and_one_that_is_only_measured_releases_nothing(make):
    with pytest.raises(InputError, match=r"expected epsilon, .* got none; say for instance epsilon=0\.5") as caught:
        make()
    assert "\n" not in str(caught.value)
    measured = make(epsilon=None)
    assert (measured.epsilon, sv.secrets.from_dict(measured.to_dict())) == (None, measured)
    with pytest.raises(InputError, match="has no epsilon"):
        sv.Policy(secrets=measured)
    watch = sv.secrets.Watch.start(PAIR, measured)
    for _ in range(3):
        watch = watch.observe([0.4, 0.6])
    assert watch.log_odds != 0


@pytest.mark.parametrize(
    ("given", "field"),
    [({}, "epsilon"), ({"secret": 1}, "secret_epsilon"), ({"secret": 1, "epsilon": 1.0}, "secret_epsilon")],
)
def test_the_page_has_no_epsilon_of_its_own_either(given, field):
    with pytest.raises(InputError, match=f"^{field}: expected a finite number"):
        Ask.of({"source": "clicks", "mechanism": "guarded", **given})


def test_nor_have_the_options_of_any_command():
    for secret in ({"secret": ["ever:1"]}, {"secret": ["ever:1"], "epsilon": 1.0}):
        with pytest.raises(InputError, match="add --secret-epsilon"):
            SettingOptions(**secret).setting(PAIR)


def test_no_function_of_the_core_and_the_layers_above_has_an_epsilon_of_its_own():
    """Every parameter called epsilon has no default, or None."""
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
    return given is not None and given.default is not inspect.Parameter.empty and given.default is not None
