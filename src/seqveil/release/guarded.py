"""Releases that keep declared secrets: what is told is as true as it can be while no secret's odds move too far.

One release is a pure step of a public state: `table` makes the kernel from what is public, `step` draws from it,
`observe` is the same step as a receiver sees it, who knows the plan and the releases and nothing else.

*Guarantee*, for an observer who believes the model (or one of `observers`): for every secret, at every time and for
every outcome, Pr(y_1..t | E) / Pr(y_1..t | not E) lies between e^-ε and e^ε of that secret (on one side where it is
declared so). It is a total: it does not grow with the length of the stream. Without `epsilon` nothing is promised about
the whole sequence, nor without a model: what tells nothing about a secret is told as it is. With `epsilon` every
release is also sound at ε, hence 2ε-LDP, as those of any sound mechanism.

A table is checked from its integers before a coin is thrown; one that keeps every promise always exists, because saying
the same whatever the truth is leaves all odds as they are.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np

from seqveil.core import filtering, mechanisms
from seqveil.core.alphabet import WITHHELD
from seqveil.core.coins import Coins
from seqveil.core.distortion import Distortion, resolve
from seqveil.core.errors import DataError, InputError
from seqveil.core.guarding.bounds import Bounds
from seqveil.core.guarding.tables import Table, guarded
from seqveil.core.kernel import Floats, Kernels
from seqveil.core.mechanisms import Mechanism
from seqveil.core.model import MarkovModel
from seqveil.core.secrets import Secret, Watches
from seqveil.core.secrets.watch import LONGEST
from seqveil.release import stream
from seqveil.release.stream import Released, Setting, State, charge

NAME = "guarded"
NO_BOUND = "no bound: nothing is promised about the whole sequence, only about the declared secrets"


def _build(_beliefs: Floats, _epsilon: float, _distortion: Distortion) -> Kernels:
    raise InputError(f'"{NAME}" needs more than a belief: its kernels follow from the secrets declared to a Session')


MECHANISM = Mechanism(
    NAME,
    summary="the least error that keeps declared secrets",
    guarantee="the odds of every declared secret move by at most e^ε in total; nothing else without an ε of its own",
    trusts="the model",
    cost="O(n log n) for one secret and wrong symbols, else a linear program",
    reference="docs/secrets.md",
    sound=True,
    ldp=2.0,
    build=_build,
)


@dataclass(frozen=True, eq=False)
class Guarding:
    """Everything public about a guarded stream but the releases themselves.

    - `setting`: the model, the distortion, and the ε of every release (infinite: none);
    - `secrets`: what is kept;
    - `observers`: further models, each with an account of its own; every promise holds for all of them;
    - `withhold`: the truth or nothing, never a wrong symbol;
    - `blank`: what a release that says nothing costs, where it may be chosen instead of a wrong symbol;
    - `longest`: the most events of a stream, where a promise needs an end.
    """

    setting: Setting
    secrets: tuple[Secret, ...]
    observers: tuple[MarkovModel, ...] = ()
    withhold: bool = False
    blank: float | None = None
    longest: int = LONGEST

    @classmethod
    def of(
        cls,
        model: MarkovModel,
        secrets: Secret | Sequence[Secret],
        epsilon: float | None = None,
        distortion: str | Distortion = "hamming",
        observers: MarkovModel | Sequence[MarkovModel] = (),
        withhold: bool = False,
        blank: float | None = None,
        longest: int = LONGEST,
    ) -> Guarding:
        """A checked plan from what a person types."""
        rate = math.inf if epsilon is None else mechanisms.check_epsilon(epsilon)
        if withhold and epsilon is not None:
            raise InputError(
                "the truth or nothing (withhold=True) cannot be sound at an epsilon as well, for the truth alone is "
                "told; leave one of them out"
            )
        if blank is not None and (
            isinstance(blank, bool) or not (isinstance(blank, (int, float)) and 0 <= blank < 1e9)
        ):
            raise InputError("expected blank, the cost of saying nothing, as a finite number of at least 0; try 0.5")
        wanted = (secrets,) if isinstance(secrets, Secret) else tuple(secrets)
        if not wanted:
            raise InputError(f'"{NAME}" keeps declared secrets and got none; pass secrets=[sv.secrets.ever(…)]')
        others = (observers,) if isinstance(observers, MarkovModel) else tuple(observers)
        setting = Setting(model, MECHANISM, rate, resolve(distortion, model.alphabet))
        return cls(setting, wanted, others, bool(withhold), None if blank is None else float(blank), longest)

    @property
    def model(self) -> MarkovModel:
        return self.setting.model

    @property
    def epsilon(self) -> float | None:
        """The ε of every release; None where there is none."""
        return None if math.isinf(self.setting.epsilon) else self.setting.epsilon

    def watches(self) -> Watches:
        """The accounts before the first release; refuses in one line what cannot be kept."""
        return Watches([self.model, *self.observers], self.secrets, self.longest)

    def describe(self) -> dict[str, object]:
        """The public parameters a receiver needs besides the models, as plain values."""
        return {
            **self.setting.to_dict(),
            "epsilon": self.epsilon,
            "secrets": [secret.to_dict() for secret in self.secrets],
            "observers": [model.fingerprint for model in self.observers],
            "withhold": self.withhold,
            "blank": self.blank,
            "longest": self.longest,
        }


@dataclass(frozen=True, eq=False)
class Public:
    """The public state of one guarded stream: what the releases so far imply about it and about the secrets."""

    state: State
    watches: Watches

    @classmethod
    def start(cls, plan: Guarding) -> Public:
        return cls(State.start(plan.setting), plan.watches())


def table(plan: Guarding, public: Public) -> Table:
    """The integer table of the next release: a function of what is public alone, checked before anything is drawn."""
    public.watches.check_room()
    return guarded(Bounds.of(public.watches), plan.setting.distortion, plan.blank, not plan.withhold, plan.epsilon)


def step(plan: Guarding, public: Public, code: int, coins: Coins) -> tuple[Released, Public]:
    """Release one symbol; its code may be UNKNOWN, which is hidden by a draw from the belief.

    What comes out is a code, or WITHHELD where nothing is said.
    """
    raw = stream.raw_codes(np.array([code], np.int64), plan.model.n, 1)
    made = table(plan, public)
    known = stream.hidden(plan.setting, public.state.states, raw, coins)
    return _after(plan, public, made, made.pick(int(known[0]), int(coins.draw(1)[0])))


def observe(plan: Guarding, public: Public, code: int) -> tuple[Released, Public]:
    """The same step as a receiver sees it: the release is given, nothing private is needed.

    The law of the true symbol given the release, WITHHELD or not, is proportional to `beliefs * columns` of what comes
    back: what was withheld is decoded like anything else.
    """
    made = table(plan, public)
    place = np.flatnonzero(made.outputs == code)
    if not place.size:
        raise DataError(
            "a release cannot have come from this mechanism with this model and these secrets; check that model, "
            "secrets, observers, epsilon, withhold and blank are those of the release"
        )
    return _after(plan, public, made, int(place[0]))


def _after(plan: Guarding, public: Public, made: Table, drawn: int) -> tuple[Released, Public]:
    setting, state, model = plan.setting, public.state, plan.model
    column = made.column(drawn)
    codes, epsilons = made.outputs[[drawn]], np.array([setting.epsilon])
    states, account, weights = charge(model, state.states, state.account, column[None])
    released = Released(codes, epsilons, column[None], filtering.symbols(model, state.states), weights)
    spent, ldp = state.spent + epsilons, state.ldp + setting.ldp_cost(epsilons)
    after = State(states, state.steps + 1, spent, state.saved, account, state.window, ldp)
    return released, Public(after, public.watches.observe(column))


__all__ = ["MECHANISM", "NAME", "NO_BOUND", "WITHHELD", "Guarding", "Public", "observe", "step", "table"]
