"""MarkovModel: how a stream is correlated, as a prior and sparse transitions of any order; and its file.

A model keeps which columns are what, for every file that comes later (`Reading`).
"""

from __future__ import annotations

import hashlib
import io
import json
import os
import secrets
import zipfile
import zlib
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import asdict, dataclass, field, replace
from functools import cached_property
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import ArrayLike, NDArray

from seqveil.core import filtering
from seqveil.core.alphabet import Codes, Floats, Symbols, from_json, symbols_of
from seqveil.core.errors import DataError, InputError, ModelError
from seqveil.core.states import States, Trait, answered, from_arrays, mixture, named_labels

# Pseudo-events of a context, spread as all events are: without any, what nobody did would count as impossible, and an
# account would take nobody to ever do it. More predicts rare events better and makes releases err more.
SMOOTHING = 1.0
LEAST_PEOPLE = 50  # people that a type must be the likeliest one of
SWITCH = 1e-4  # chance a step that a stream goes on as somebody else, by default

_FORMAT = "seqveil-model"
_VERSION = 1
_LEAST = 1e-130  # a step less likely than this may be lost by a float on the way
_CHUNK = 1 << 22  # numbers gathered at once by `spread`
_ARRAYS = ("initial", "backoff", "base", "base_state", "newest")
_DAMAGED = (zipfile.BadZipFile, zlib.error, EOFError, OSError)  # of a file that was cut or changed
_MALFORMED = (LookupError, ValueError, TypeError, AttributeError, RuntimeError)  # of one with other content

Names = str | Sequence[str] | None  # of the columns that name something together: "firm,badge", or a list of them
Progress = Callable[[float], None]  # called with the share of the work that is done


@dataclass(frozen=True)
class Reading:
    """The names of the columns that hold the user, the value (``"x,y"`` for two coordinates) and the order.

    Without ``time`` a column ``seq``, or else one that is called as times are, gives the order where a file has one.
    The user may be several columns.

    >>> Reading("firm,badge").user_columns
    ('firm', 'badge')
    """

    user: str = "user"
    value: str = "value"
    time: str | None = None

    user_columns: tuple[str, ...] = field(init=False, repr=False, compare=False)  # that name the user together
    value_columns: tuple[str, ...] = field(init=False, repr=False, compare=False)  # one, or two for places in a plane

    def __post_init__(self) -> None:
        for name, text in (("user", self.user), ("value", self.value)):
            object.__setattr__(self, f"{name}_columns", tuple(column.strip() for column in text.split(",")))
        names = [*self.user_columns, *self.value_columns, *([] if self.time is None else [self.time])]
        if len(self.value_columns) > 2 or not all(names) or len(set(names)) < len(names):
            raise InputError(f"expected different names for user, value (one, or two as in x,y) and time; got {names}")

    def to_dict(self) -> dict[str, str | None]:
        """The names as they were given; `Reading(**…)` takes them back."""
        return {"user": self.user, "value": self.value, "time": self.time}

    def but(self, user: Names = None, value: Names = None, time: str | None = None) -> Reading:
        """The same with other names where some are given, several in a list too: what differs in another file."""
        given: dict[str, Any] = {"user": user, "value": value, "time": time}
        given = {k: v if isinstance(v, str) else ",".join(v) for k, v in given.items() if v is not None}
        return replace(self, **given)


@contextmanager
def replacing(path: str | os.PathLike[str], private: bool = False) -> Iterator[Path]:
    """A hidden file beside the target: it takes the target's place when the block ends well, else it is removed.

    So a file appears whole or not at all, and stays after a power cut. Of a `private` one only the owner may read
    anything, from its first byte on.
    """
    target = Path(path)
    part = target.with_name(f".{target.name}.part-{secrets.token_hex(4)}")
    try:
        if private:
            os.close(os.open(part, os.O_WRONLY | os.O_CREAT | os.O_EXCL, 0o600))
        yield part
        settle(part)
        os.replace(part, target)
        settle(target.parent)  # or a power cut could undo the renaming
    finally:
        part.unlink(missing_ok=True)


def target_of(path: str | os.PathLike[str]) -> Path:
    """Where a file goes, once it is clear that it can stand there; a link stays, and what it leads to is replaced."""
    target = Path(os.path.realpath(path))
    problems = {
        "is a folder; name a file in it": target.is_dir(),
        "is not a regular file; use - to write to standard output": target.exists() and not target.is_file(),
        "its folder does not exist; create it first": not target.parent.is_dir(),
        "its folder cannot be written to; choose another": not os.access(target.parent, os.W_OK),
    }
    for problem, is_so in problems.items():
        if is_so:
            raise DataError(f"{os.path.basename(os.path.normpath(path))}: {problem}")
    return target


def settle(place: str | os.PathLike[str]) -> None:
    """Wait until a file is on the disk, or the names in a folder are."""
    if os.name == "nt":
        return  # which can wait for neither by its name
    handle = os.open(place, os.O_RDONLY)
    try:
        os.fsync(handle)
    finally:
        os.close(handle)


class MarkovModel(States):
    """A Markov chain of order m over an alphabet of n symbols.

        Pr(x_1..x_T) = prior(x_1..x_m) · Π_{k>m} transitions(x_k | x_{k-m}..x_{k-1})

    Inside, the model is a sparse chain on states (`core.states`), the contexts of the last 1..m symbols. A mixture of
    chains (`fit(…, types=16)`) has such states for each type; its types may answer a question about the
    person, the `trait`, and people then never change to a type of another answer.

    Parameters: `prior` is (n,) for order 1; for order m the joint distribution of the first m symbols, (n,)*m or
    (n**m,), or an (n,) distribution of the first symbol, in which case the history before it is taken as that symbol
    repeated. `transitions` is (n, n); for order m an (n,)*(m+1) array or an (n**m, n) matrix, dense or scipy.sparse,
    whose row number is the last m symbols in base n, oldest first. A zero row is a context that cannot occur (order > 1
    only). `alphabet` names the symbols (an alphabet or a list of values); without one they are the codes 0..n-1.

    >>> model = MarkovModel([0.5, 0.5], [[0.9, 0.1], [0.2, 0.8]], alphabet=["rest", "run"])
    >>> model
    MarkovModel(order=1, 2 symbols, 4 transitions)
    >>> model.advance(np.array([1.0, 0.0]))
    array([0.9, 0.1])
    """

    states: States  # the arrays alone
    size: int  # how many states there are
    alphabet: Symbols
    prior: Floats  # of the first symbol, (n,)
    answers: Codes  # which answer to its trait each state gives: (S,), all 0 without one
    origin: Mapping[str, Any] | None = None  # how it was made, where that was recorded: public
    reading: Reading | None = None  # the columns of the file that it was fitted to

    def __init__(
        self, prior: ArrayLike, transitions: Any, order: int = 1, alphabet: Symbols | Sequence[Any] | None = None
    ) -> None:
        states = from_arrays(prior, transitions, order)
        self._adopt(states, symbols_of(range(states.n) if alphabet is None else alphabet))

    @classmethod
    def _of(
        cls, states: States, alphabet: Symbols, origin: Mapping[str, Any] | None = None, reading: Reading | None = None
    ) -> MarkovModel:
        model = object.__new__(cls)
        model._adopt(states, alphabet)
        model.origin, model.reading = origin and json.loads(json.dumps(dict(origin), allow_nan=False)), reading
        return model

    def _adopt(self, states: States, alphabet: Symbols) -> None:
        if alphabet.n != states.n:
            raise ModelError(f"the alphabet has {alphabet.n} symbols but the model {states.n}; they must agree")
        vars(self).update(vars(states))
        self.states, self.alphabet, self.size, self.answers = states, alphabet, len(self.newest), _answers(states)
        self.prior = np.asarray(np.bincount(self.newest, self.initial, minlength=self.n), np.float64)
        for array in (self.prior, self.answers, *self._arrays().values()):
            array.flags.writeable = False

    @classmethod
    def fit(
        cls,
        streams: Any,
        order: int = 1,
        alphabet: Symbols | Sequence[Any] | None = None,
        smoothing: float = SMOOTHING,
        *,
        types: int | None = None,
        trait: tuple[str, Sequence[Any]] | None = None,
        seed: int = 0,
        switch: float = SWITCH,
        least_people: int = LEAST_PEOPLE,
    ) -> MarkovModel:
        """Count transitions in raw streams.

        With N events in context s, c(x) of them followed by x, α = `smoothing` and `base` the overall frequencies
        (f(x) + α/n) / (Σf + α), the distribution is P(x|s) = (c(x) + α·base(x)) / (N + α). With α = 0 what nobody did
        is called impossible, and accounts take nobody to ever do it (`rules_out`). Contexts that never continue restart
        from `base`. The fit itself is **not** private.

        Parameters: `streams` is a list of sequences, one for each person (`sv.fit` takes frames and files). Without
        `alphabet` it is what occurs; `range(n)` says that values are codes 0..n-1.

        With `types`, a mixture of that many chains is fitted by EM (`core.mixture`): a type of person is drawn at the
        start of a stream, and its chain is followed. `switch` is the chance a step that a stream goes on as somebody
        else, type and symbol drawn anew: 0 keeps the type for good, and above 1/1000 the types are those of pieces of
        1/`switch` events. A type that is the likeliest of fewer than `least_people` people is merged into its nearest.

        With `trait`, a name and one label for each of the listed streams, such as ("heating", ["gas", "electric", …]),
        each answer has types of its own, so many as `types` says, or as held-out people bear out.
        Streams whose label is None are left out. `sv.secrets.trait` keeps the answer secret.

        >>> MarkovModel.fit([["a", "b", "a"], ["b", "a"]]).advance(np.array([0.0, 1.0])).round(3).tolist()
        [0.861, 0.139]
        >>> MarkovModel.fit([[0, 0, 0, 1, 0]] * 60 + [[1, 1, 0, 1, 1]] * 60, types=2)
        MarkovModel(2 types, order=1, 2 symbols, 8 transitions)
        """
        from seqveil.core.fitting import fit_codes, read_streams

        found, users, codes = read_streams(streams, alphabet)
        how: dict[str, Any] = {"types": types, "trait": trait, "switch": switch, "least_people": least_people}
        return fit_codes(users, codes, found, order=order, smoothing=smoothing, seed=seed, **how)

    @classmethod
    def mixture(
        cls, models: Sequence[MarkovModel], weights: ArrayLike, switch: float = 0.0, trait: Any = None
    ) -> MarkovModel:
        """People of several types, each with a chain that is known: type k is drawn with probability weights[k].

        `switch` is the chance a step that the stream goes on as somebody else; `trait` a question about people, by
        name, and the answer of each type.

        >>> calm, lively = (MarkovModel([0.5, 0.5], [[s, 1 - s], [1 - s, s]]) for s in (0.9, 0.2))
        >>> both = MarkovModel.mixture([calm, lively], [0.5, 0.5])
        >>> both, round(both.log_likelihood([0, 0, 0]), 3)  # log of 0.5 · (0.9² + 0.2²) / 2
        (MarkovModel(2 types, order=1, 2 symbols, 8 transitions), -1.549)
        """
        shares, blocks = np.asarray(weights, np.float64), [each.states for each in models]
        if len({(each.order, each.types, each.alphabet.fingerprint()) for each in models}) != 1 or models[0].types > 1:
            raise ModelError("a mixture needs chains of one order and one alphabet, none of them a mixture itself")
        if (
            shares.shape != (len(models),)
            or not (shares > 0).all()
            or abs(shares.sum() - 1) > 1e-9
            or not 0 <= switch < 1
        ):
            raise ModelError("a mixture needs a weight above 0 for each chain, 1 in all, and switch from 0 to below 1")
        if trait is None:
            return cls._of(mixture(blocks, shares, switch), models[0].alphabet)
        name, labels = named_labels(trait)
        if len(labels) != len(models) or not all(labels):
            raise ModelError("a trait needs an answer for each of the types")
        answers, own = tuple(sorted(set(labels))), np.array(labels)
        kinds = [np.flatnonzero(own == answer) for answer in answers]
        priors = np.array([shares[some].sum() for some in kinds])
        parts = [mixture([blocks[k] for k in some], shares[some] / shares[some].sum(), switch) for some in kinds]
        return cls._of(answered(name, answers, parts, priors), models[0].alphabet)

    @property
    def transitions(self) -> int:
        """How many steps of the chain have a probability of their own: the size of the model."""
        return int(self.chain.nnz)

    def with_origin(self, origin: Mapping[str, Any]) -> MarkovModel:
        """The same model with a public record of how it was made; file and fingerprint cover it."""
        return self._of(self.states, self.alphabet, origin, self.reading)

    def with_reading(self, reading: Reading) -> MarkovModel:
        """The same model with the columns that later files are read by; the fingerprint does not cover them."""
        return self._of(self.states, self.alphabet, self.origin, reading)

    @cached_property
    def inflow(self) -> Any:
        """Transposed chain with the back-off of each answer's states as one more row, so that one sparse product does
        all of `advance`."""
        from scipy import sparse

        own = self.answers == np.arange(self.restart_rows)[:, None]
        return sparse.vstack([self.chain.T, sparse.csr_array(np.where(own, self.backoff, 0.0))], format="csr")

    @cached_property
    def entered(self) -> tuple[Codes, Codes]:
        """The rows of `inflow` that anything leads to, and where the entries of each begin."""
        reached = np.flatnonzero(np.diff(self.inflow.indptr))
        return reached, self.inflow.indptr[reached]

    @cached_property
    def restart_rows(self) -> int:
        """How many base distributions there are: one for each answer to the trait, one without a trait."""
        return 1 if self.trait is None else len(self.trait.answers)

    @cached_property
    def base_answer(self) -> Codes:
        """The answer that each entry of `base` belongs to."""
        return self.answers[self.base_state]

    @cached_property
    def inward(self) -> tuple[NDArray[Any], ...]:
        """What `filtering.move_side_by_side` needs of the chain."""
        pointers, sources = (np.array(a, np.uint32) for a in (self.inflow.indptr, self.inflow.indices))
        # copies, which may be written to: read-only arrays would have the code compiled once more
        return np.array(self.newest), pointers, sources, self.inflow.data, self.anew, np.array(self.answers)

    def advance(self, weights: ArrayLike) -> Floats:
        """weights · P for weights over states, (S,) or (B, S)."""
        return filtering.advance(self, weights)

    @cached_property
    def anew(self) -> Floats:
        """The base distribution over the states, of each within its own answer: (S,)."""
        return np.asarray(np.bincount(self.base_state, self.base, self.size), np.float64)

    @cached_property
    def barely(self) -> bool:
        """Whether some step is so unlikely that a float may lose it on the way."""
        direct = float(self.chain.data[self.chain.data > 0].min(initial=1.0))
        again = self.backoff[self.backoff > 0].min(initial=1.0) * self.base[self.base > 0].min(initial=1.0)
        return bool(min(direct, float(again)) < _LEAST)

    def spread(self, values: Floats, largest: bool) -> Floats:
        """The largest (smallest) value among the states that can lead to each state: (B, S) → (B, S).

        out[s'] = max (min) over s with P(s'|s) > 0 of values[s]; -inf (+inf) where nothing leads to s'. O(nnz).
        """
        pick, nothing = (np.maximum, -np.inf) if largest else (np.minimum, np.inf)
        sources, reached, begins = self.inflow.indices, *self.entered
        found = np.full((len(values), self.inflow.shape[0]), nothing)
        step = max(1, _CHUNK // len(sources))
        for low in range(0, len(values), step):
            part = slice(low, low + step)
            found[part, reached] = pick.reduceat(values[part, sources], begins, axis=1)
        again = np.where(self.anew > 0, found[:, self.size :][:, self.answers], nothing)
        return pick(found[:, : self.size], again)

    @cached_property
    def full_support(self) -> bool:
        """Whether each state can go to every other (and itself), and none of it all but impossibly.

        Then every sequence of symbols can occur, and no state's probability gets too small for a float. Chains of
        order 1 are so where all counts are positive, mixtures of them where streams may change their type.
        """
        single = self.size == self.types * self.n and self.trait is None and not self.barely
        return single and self._open_to_all(np.arange(self.size), self.size)

    @cached_property
    def rules_out(self) -> bool:
        """Whether some symbol is called impossible somewhere: at the start of a stream, or after some context.

        Then an account holds for people who never do what the model calls impossible; LDP levels hold for everyone.
        """
        return not (self._open_to_all(self.newest, self.n) and (self.prior > 0).all())

    def _open_to_all(self, groups: Codes, count: int) -> bool:
        """Whether each state can be followed by a state of every group, of which each is in one: (S,)."""
        from scipy import sparse

        member = sparse.csr_array((np.ones(self.size), (np.arange(self.size), groups)), (self.size, count))
        leads = sparse.csr_array((self.chain > 0).astype(np.float64) @ member)
        of_base = self.base_answer * count + groups[self.base_state]
        lacking = np.bincount(of_base, self.base, self.restart_rows * count).reshape(-1, count) == 0
        source = np.repeat(np.arange(self.size), np.diff(leads.indptr))
        patched = np.bincount(source, lacking[self.answers[source], leads.indices], self.size)
        restarted = (self.backoff > 0) & (patched == lacking.sum(1)[self.answers])
        return bool(((np.diff(leads.indptr) == count) | restarted).all())

    def log_likelihood(self, codes: ArrayLike) -> float:
        """log Pr of one sequence of codes (natural logarithm), -inf where it cannot occur."""
        sequence = self.alphabet.checked_codes(codes)
        if len(sequence) == 0:
            raise InputError("a likelihood needs at least one event; got none")
        return float(filtering.log_likelihoods(self, np.zeros_like(sequence), sequence)[0])

    def sample(self, length: int, users: int = 1, seed: int | None = None) -> Codes:
        """Simulated streams, (users, length) codes. For planning and research; no privacy rests on this generator."""
        if length < 1 or users < 1:
            raise InputError(f"length and users must be >= 1; got {length} and {users}")
        generator = np.random.default_rng(seed)
        state = _draw(self.initial, generator.random(users))
        out = np.empty((users, length), np.int64)
        out[:, 0] = self.newest[state]
        for step in range(1, length):
            state = self._step(state, generator)
            out[:, step] = self.newest[state]
        return out

    @cached_property
    def _running(self) -> Floats:
        """Running sums of the chain's entries, from 0 on: (nnz + 1,)."""
        return np.concatenate([[0.0], np.cumsum(self.chain.data)])

    def _step(self, state: Codes, generator: np.random.Generator) -> Codes:
        begin, end = self.chain.indptr[state], self.chain.indptr[state + 1]
        uniform = self._running[begin] + generator.random(len(state))
        place = np.maximum(np.searchsorted(self._running[1:], uniform, side="right"), begin)
        past = place >= end
        restart = past & (self.backoff[state] > 0)
        place[past & ~restart] = end[past & ~restart] - 1  # a complete row whose sum fell short of one by rounding
        following = np.empty(len(state), np.int64)
        following[~restart] = self.chain.indices[place[~restart]]
        drawn = generator.random(int(restart.sum()))
        for answer in range(self.restart_rows):
            own, base = restart & (self.answers[state] == answer), np.where(self.base_answer == answer, self.base, 0.0)
            following[own] = self.base_state[_draw(base, drawn[own[restart]])]
        return following

    @cached_property
    def fingerprint(self) -> str:
        """SHA-256 over order, types, alphabet, arrays, origin and trait; the same after `save` and `load`."""
        head = f"{_FORMAT} {_VERSION} {self.order} {self.types} {self.alphabet.fingerprint()}"
        digest = hashlib.sha256(head.encode())
        for name, array in sorted(self._arrays().items()):
            kind = "<f8" if array.dtype.kind == "f" else "<i8"
            digest.update(f" {name} {array.shape} ".encode())
            digest.update(np.ascontiguousarray(array, dtype=kind).data)
        for fact in (self.origin, None if self.trait is None else {"trait": asdict(self.trait)}):
            digest.update(b"" if fact is None else json.dumps(fact, sort_keys=True).encode())
        return digest.hexdigest()

    def _arrays(self) -> dict[str, Any]:
        parts = {f"chain_{part}": getattr(self.chain, part) for part in ("data", "indices", "indptr")}
        return parts | {name: getattr(self, name) for name in _ARRAYS}

    def save(self, path: str | os.PathLike[str]) -> None:
        """Write the model to one file, all of it or nothing."""
        with replacing(path) as part:
            part.write_bytes(self.to_bytes())

    def to_bytes(self) -> bytes:
        """The model as `save` writes it: NumPy arrays and a JSON header, nothing executable."""
        header = {"format": _FORMAT, "version": _VERSION, "order": self.order, "n": self.n, "types": self.types}
        header |= {"alphabet": self.alphabet.to_json(), "fingerprint": self.fingerprint}
        trait = None if self.trait is None else asdict(self.trait)
        reading = None if self.reading is None else self.reading.to_dict()
        facts = {"trait": trait, "origin": self.origin, "reading": reading}
        header |= {name: fact for name, fact in facts.items() if fact is not None}
        text, file = np.frombuffer(json.dumps(header).encode(), np.uint8), io.BytesIO()
        np.savez_compressed(file, allow_pickle=False, header=text, **self._arrays())
        return file.getvalue()

    @classmethod
    def load(cls, path: str | os.PathLike[str]) -> MarkovModel:
        """Read a model written by `save`; anything else, or anything altered, is refused."""
        name = Path(path).name
        try:
            content = Path(path).read_bytes()
        except OSError as error:
            raise ModelError(f"cannot read the model file {name}: {error.strerror}; check the path") from None
        return cls.from_bytes(content, name)

    @classmethod
    def from_bytes(cls, content: bytes, name: str = "the model") -> MarkovModel:
        """The model of which `to_bytes` gave this; `name` is for messages."""
        try:
            with np.load(io.BytesIO(content), allow_pickle=False) as file:
                header = json.loads(file["header"].tobytes())
                if header["format"] != _FORMAT:
                    raise ValueError("another kind of file")
                if header["version"] != _VERSION:
                    found = f"{name} has model format {header['version']!r}"
                    raise ModelError(f"{found}, this seqveil reads {_VERSION}; refit it")
                model = cls._from_file(header, file)
        except ModelError:
            raise
        except (*_DAMAGED, *_MALFORMED):
            raise ModelError(f"{name} is not a seqveil model, or is damaged; copy it again, or refit it") from None
        if model.fingerprint != header.get("fingerprint"):
            raise ModelError(f"{name} was altered: its fingerprint does not match its content; refit the model")
        return model

    @classmethod
    def _from_file(cls, header: dict[str, Any], file: Any) -> MarkovModel:
        from scipy import sparse

        size, saved = len(file["newest"]), header.get("trait")
        parts = tuple(file[f"chain_{part}"] for part in ("data", "indices", "indptr"))
        chain = sparse.csr_array(parts, shape=(size, size), dtype=np.float64)
        chain.check_format(full_check=True)
        if saved is not None:
            saved = Trait(saved["name"], tuple(saved["answers"]), tuple(map(int, saved["types"])))
        numbers: dict[str, Any] = {name: int(header[name]) for name in ("order", "n", "types")}
        states = States(**numbers, chain=chain, trait=saved, **{name: file[name] for name in _ARRAYS})
        validate(states)
        reading = Reading(**header["reading"]) if "reading" in header else None
        return cls._of(states, from_json(header["alphabet"]), header.get("origin"), reading)

    def __repr__(self) -> str:
        types = f"{self.types} types, " if self.types > 1 else ""
        types = types if self.trait is None else f"trait {self.trait.name}, {types}"
        return f"MarkovModel({types}order={self.order}, {self.n} symbols, {self.transitions} transitions)"


def _draw(distribution: Floats, randomness: Floats) -> Codes:
    """One index of `distribution` for each uniform number."""
    running = np.cumsum(distribution)
    place = np.searchsorted(running, randomness * running[-1], side="right")
    return np.asarray(np.minimum(place, np.flatnonzero(distribution)[-1]), dtype=np.int64)


def _answers(states: States) -> Codes:
    """Which answer to its trait each state gives."""
    if states.trait is None:
        return np.zeros(len(states.newest), np.int64)
    kind = np.searchsorted(states.base_state[:: states.n], np.arange(len(states.newest)), side="right") - 1
    return np.repeat(np.arange(len(states.trait.types)), states.trait.types)[kind]


def validate(states: States) -> None:
    """Raise `ModelError` unless the arrays are those of a model (they may come from a file)."""
    size, n = len(states.newest), states.n
    chain, wide = states.chain, (states.types * n,)
    of_states = states.initial.shape == states.backoff.shape == states.newest.shape and chain.shape == (size, size)
    of_symbols = states.types >= 1 and states.base.shape == states.base_state.shape == wide
    if not of_states or not of_symbols or (states.order == 1 and size != wide[0]):
        raise ModelError("the model's arrays do not fit together, or not its alphabet; save the model again")
    numbers = (chain.data, states.initial, states.backoff, states.base)
    if not all(part.dtype == np.float64 and np.isfinite(part).all() and (part >= 0).all() for part in numbers):
        raise ModelError("the model holds negative or non-finite probabilities; save the model again")
    named = ((states.newest, n), (states.base_state, size))
    known = all(a.dtype == np.int64 and (a >= 0).all() and (a < limit).all() for a, limit in named)
    if not known or not np.array_equal(states.newest[states.base_state], np.tile(np.arange(n), states.types)):
        raise ModelError("the model's states do not match its symbols; save the model again")
    if states.trait is not None:
        begins = states.base_state[::n]
        if sum(states.trait.types) != states.types or begins[0] != 0 or (np.diff(begins) <= 0).any():
            raise ModelError("the model's trait does not fit its types; save the model again")
    answers, steps = _answers(states), chain.tocoo()
    if (answers[steps.row] != answers[steps.col])[steps.data > 0].any():
        raise ModelError("the model lets people change their answer to its trait; save the model again")
    totals = np.asarray(chain.sum(axis=1)).ravel() + states.backoff
    base = np.bincount(answers[states.base_state], states.base)
    distributions = (np.abs(totals - 1).max(), abs(states.initial.sum() - 1), np.abs(base - 1).max())
    if max(distributions) > 1e-9:
        raise ModelError("the model's probabilities do not sum to one; save the model again")
