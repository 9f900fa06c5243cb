"""What a release made, as its caller sees it: the released rows, their account, and what there is to say about them."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import asdict, dataclass, field
from typing import Any

import numpy as np

from seqveil.core.kernel import Floats, Ints
from seqveil.core.results import Line, Result, cell_text, plain
from seqveil.core.words import count
from seqveil.engine.secrets import SecretTotal
from seqveil.engine.stream import Terms
from seqveil.engine.terms import NO_BOUND
from seqveil.receiver.drift import NOT_ASKED, Drift, ModelCheck

CHECK_ON_PEOPLE = "`seqveil attack` tries to break the promise for real people"
TOO_FEW = 20  # releases that are not worth asking
SHOWN = 6  # values, those changed most often first

Meta = dict[str, Any]
Shown = Callable[[list[Line]], None]


@dataclass(frozen=True)
class ReleasedFile:
    """The account of a release. Public: it holds nothing but counts and what the releases imply.

    A release is one symbol, or one batch.
    """

    events: int
    users: int
    releases: int
    held: int  # releases that are the best guess, which leaks nothing: at ε = 0, or a batch whose ε buys no cell
    stopped: int  # events that the policy "stop" left out
    leakage: float  # of the user with the most: exact, or, for batches, from above
    composition: float  # Σε of the user with the most
    ldp: float  # without any model, of the user with the most
    private: bool
    guarantee: str
    warnings: tuple[str, ...]
    batch: int = 1
    exact: bool = True  # whether the leakage is
    withheld: int = 0  # rows whose value is empty, because saying nothing kept a secret
    earlier: int = 0  # rows that an earlier run with the same state file had released
    erased: int = 0  # rows of people who were erased from the state file, which are left out
    times: str | None = None  # what the times were read as, where a budget counts in seconds
    secrets: tuple[SecretTotal, ...] = ()  # what was disclosed about each declared secret, worst over users
    whole_sequence: str = ""  # says in words where nothing is promised about the whole sequence
    made_public: str = ""  # says what a declaration makes public, where that is a place
    model_check: str = ""  # with declared secrets: whether the model was checked on people held out, in words
    words: tuple[str, ...] = ()  # what all that means for a person, a sentence each
    grade: str = ""  # by what a suspicion of 1 % may become (`seqveil.core.words`)
    grade_why: str = ""
    check: ModelCheck = NOT_ASKED  # whether the releases fit the model
    warning: str = ""  # one line with the remedy, where the grade is not green
    read: str = ""  # how the rows were read and ordered, in words


@dataclass(frozen=True, eq=False, repr=False)
class ReleasedRows(Result):
    """Released rows, and all that is public about them.

    `frame` has a row for each release, or is the path of the file that has them: by time or number where there is one,
    then by user, else user by user. Its order and its types come from public things, so nothing of the rows that came
    is in it but users and order. `account` is what was spent and leaked; `meta` is what stands in the side file, and
    what a receiver needs beside the frame and the model.
    """

    frame: Any
    account: ReleasedFile
    meta: Meta = field(default_factory=dict)

    def to_dict(self) -> dict[str, Any]:
        """The account as plain values, with the setting."""
        return dict(plain(asdict(self.account))) | {"setting": plain(self.meta.get("setting"))}

    def lines(self, warned: bool = False) -> list[Line]:
        """The account, line by line; whoever is `warned` already hears no warning that little protects."""
        account = self.account
        said = [("read", account.read), ("released", _how_much(account)), ("earlier", _earlier(account))]
        said += [("guarantee", account.guarantee), *(("means", sentence) for sentence in account.words)]
        said.append(("realised", _realised(account)))
        for each in account.secrets:
            if each.kept is not None:
                said.append(("secret", f"{each.name}: its log odds moved by at most {each.log_odds_worst:.4g}"))
        said += [("public", account.made_public), ("model", account.model_check)]
        said.append(("times", "" if account.times is None else f"read as {account.times}"))
        said += [] if account.warning else [("grade", f"{account.grade}: {account.grade_why}")]
        said += [("warning", text) for text in account.warnings]
        said.append(("warning", "" if warned else account.warning))
        said.append(("people", CHECK_ON_PEOPLE if account.secrets else ""))
        return [(name, text) for name, text in said if text]


def _how_much(account: ReleasedFile) -> str:
    what = f"{account.releases:,} of"
    if account.batch > 1:
        what = f"{count(account.releases, 'batch', 'batches')} of at most {account.batch} from"
    parts = {
        f"{what} {count(account.events, 'event')}, {count(account.users, 'user')}": True,
        f"{account.held:,} held at the best guess": account.held,
        f"{account.withheld:,} with an empty value, to keep a secret": account.withheld,
        f"{count(account.stopped, 'event')} left out, the budget being spent": account.stopped,
        f"{count(account.erased, 'row')} of people who were erased left out": account.erased,
    }
    return ", ".join(text for text, there in parts.items() if there)


def _earlier(account: ReleasedFile) -> str:
    """What of it an earlier run with the same state file had released."""
    new = account.events - account.earlier
    if not account.earlier:
        return ""
    if new > 0:
        return (
            f"{account.earlier:,} of the rows were released by an earlier run and stand as they were; {new:,} are new"
        )
    return (
        "nothing new: all rows were released by an earlier run, and stand as they were; rows are known by their "
        "users and order alone, so give another input a state file of its own, or add its rows to the end of this one"
    )


def _realised(account: ReleasedFile) -> str:
    """What was leaked, and what holds beside it; empty where the guarantee says it all."""
    if not np.isfinite(account.leakage):
        return ""
    total = f"worst total over a stream {'' if account.exact else 'at most '}{account.leakage:.4g}"
    if account.whole_sequence:
        return f"{total}, measured, not promised"
    charged = f"composition charges {account.composition:.4g}"
    return f"{total} ({charged}); without any model {cell_text(account.ldp)}{'-LDP' * bool(np.isfinite(account.ldp))}"


def guarantee(setting: Terms) -> str:
    """What the setting promises, in plain words.

    >>> from seqveil import MarkovModel, Policy
    >>> model = MarkovModel([0.5, 0.5], [[0.9, 0.1], [0.1, 0.9]])
    >>> guarantee(Policy(epsilon=1.0).on(model))[:70]
    'each release moves what anyone who knows the model believes about a us'
    """
    if not setting.mechanism.sound:
        return (
            f'none: "{setting.mechanism.name}" is not sound ({setting.mechanism.guarantee}); its true leakage stands '
            "beside the nominal one"
        )
    kept = "; ".join(secret.sentence for secret in setting.secrets)
    assumed = "; totals are for people who never do what the model calls impossible" * setting.model.rules_out
    if setting.unbounded:
        return f"{kept}; {NO_BOUND}{assumed}"
    text, budget = "; ".join(setting.policy.bounds(setting.in_batches)), setting.budget
    text += assumed if kept or budget.exact_total is not None or budget.per_window is not None else ""
    return f"{kept}; and {text}" if kept else text


def model_check(
    setting: Terms, who: Ints, codes: Ints, times: Floats | None, epsilons: Floats | None = None
) -> ModelCheck:
    """Whether releases fit the model they were made with; people as numbers, NOTHING where nothing was released."""
    if setting.in_batches or not setting.mechanism.sound:
        return ModelCheck.none("that takes releases one by one, by a sound mechanism")
    if codes.size < TOO_FEW:
        return ModelCheck.none(f"{codes.size} releases are too few to speak against it")
    drift = Drift(setting, int(who.max()) + 1)
    drift.update(who.astype(np.intp), codes, times, epsilons)
    return ModelCheck.of(drift)
