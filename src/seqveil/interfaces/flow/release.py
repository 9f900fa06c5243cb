"""Release a file of many users' streams: row by row in the order of the file, or batch by batch as they fill."""

from __future__ import annotations

import math
import os
from collections.abc import Mapping
from dataclasses import asdict, dataclass, field, replace
from typing import Any, Protocol

from numpy.typing import NDArray

from seqveil.core.alphabet import OnUnknown, Symbols
from seqveil.core.coins import coins
from seqveil.core.errors import BudgetSpent, InputError
from seqveil.interfaces.files import Chunk, Columns, Writer
from seqveil.interfaces.flow import batched
from seqveil.interfaces.flow import meta as side
from seqveil.interfaces.flow.batched import Batcher, OneByOne
from seqveil.interfaces.flow.meta import BATCH, EPSILON, PATH
from seqveil.interfaces.flow.rows import (
    CHUNK_ROWS,
    Clock,
    FilePath,
    Progress,
    Rows,
    Source,
    Table,
    columns_for,
    seconds,
    times_read_as,
)
from seqveil.release.releases import Standings
from seqveil.release.secrets import SecretTotal
from seqveil.release.setting import NO_BOUND
from seqveil.release.stream import UNKNOWN, Setting

MEMORY = 1 << 30
SEEDED = "seeded, so NOT private: whoever knows the seed can undo the release"


@dataclass(frozen=True)
class Released:
    """The account of a released file. Public: it holds nothing but counts and what the releases imply.

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
    unknown: int = 0  # values outside the alphabet that this run hid: for the operator alone, never in a side file
    choices: Mapping[str, Mapping[str, Any]] = field(default_factory=dict)  # of mechanism auto: how often which, why
    refused: int = 0  # events that the policy "error" left out
    times: str | None = None  # what the times were read as, where a budget counts in seconds
    secrets: tuple[SecretTotal, ...] = ()  # what was told about each declared secret, worst over users
    whole_sequence: str = ""  # says in words where nothing is promised about the whole sequence


def release_file(
    data: FilePath,
    setting: Setting,
    out: FilePath,
    *,
    columns: Columns | None = None,
    seed: int | None = None,
    on_unknown: OnUnknown | None = None,
    format: str | None = None,
    out_format: str | None = None,
    sort: bool = False,
    meta: FilePath | None = None,
    inputs: tuple[FilePath, ...] = (),
    force: bool = False,
    chunk: int = CHUNK_ROWS,
    memory: int = MEMORY,
    progress: Progress | None = None,
) -> Released:
    """Release every row of a file and write user, order, released value and the ε it used.

    One by one the rows keep their order. In batches (a setting with a batched mechanism) the rows of a batch are
    written together when it is full, short last batches at the end; a batch's first row carries its ε and its path
    (columns `epsilon` and `path`), the others 0 and "-", and all its number in the user's stream (`batch`).

    *Guarantee*: each user's stream is released as by a `Session` of its own; other columns of the file are dropped; the
    output and its side file (`OUT.meta.json`, or `meta`) appear whole or not at all, except on standard output. All
    that was drawn is in them: with a budget whose policy is "error" the rows of a user from the first one that finds it
    spent are left out, all others are written, and then BudgetSpent is raised with the account.

    Parameters: `on_unknown` replaces the model's policy for values outside its alphabet: "error", "nearest", or "hide",
    which releases a draw from the public belief in their place (on standard output, which receivers may watch as it
    goes, "error" means "hide"); `seed` is for research and marks the release as not private; `inputs` are further files
    that `out` must not replace; `force` draws again over an earlier release, a second spend; `memory` bounds what the
    states of users may take. With a budget whose policy is "stop" the rows left out are told by a column `event`, each
    user's count of events before the row, or by a gap in `batch`.
    """
    refuse_withholding(setting)
    pace = min(chunk, batched.CHUNK_ROWS) if setting.in_batches else chunk
    source = Source(data, columns_for(setting, columns), format, sort, pace)
    alphabet = _raw_alphabet(setting, on_unknown, out)
    releaser = (Batcher if setting.in_batches else OneByOne)(setting, coins(seed), memory)
    clock = Clock(setting)
    table, digest, order, unit, unknown = Table(alphabet, source.columns), side.Digest(), None, None, 0
    refuse_overwriting(data, out, meta, inputs)
    with Writer(out, out_format, (data, *inputs)) as writer:
        side.refuse_second(out, meta, force=force)

        def write(rows: Rows) -> None:
            writer.write(table.frame(rows.chunk, rows.codes, added(setting, rows)))
            paths = zip(rows.more[BATCH], rows.more[PATH], strict=True) if PATH in rows.more else None
            digest.add(rows.users, rows.codes, rows.epsilons, paths)

        for part, codes in source.coded(alphabet, progress):
            stamps = seconds(part, source.name) if setting.budget.seconds is not None else None
            if stamps is not None:
                clock.check(part.users.to_list(), stamps)
            write(releaser.take(part, codes, stamps))
            order, unit = _order_name(part), None if stamps is None else times_read_as(part)
            unknown += int((codes == UNKNOWN).sum())
            if releaser.failure is not None:
                break
        last = releaser.finish() if releaser.failure is None else None
        if last is not None:
            write(last)
        account = replace(account_of(setting, releaser, seed), times=unit)
        facts = disk_full(setting, source.columns, order, seed, account, digest)
        side.save(facts | ({} if releaser.failure is None else {"unfinished": True}), out, meta)
    if releaser.failure is not None:
        raise releaser.failure
    return unless_refused(replace(account, unknown=unknown), setting)


def refuse_withholding(setting: Setting) -> None:
    """Refuse a setting that may say nothing: a row that is not there looks like no event, which it is not."""
    if setting.withhold or setting.blank is not None:
        raise InputError("a file has no place for a release that says nothing; use Session or Streams, or leave it out")


def added(setting: Setting, rows: Rows) -> dict[str, NDArray[Any]]:
    """The columns that a release adds: the ε that each row used, where there is one, and what else there is to say."""
    return {**rows.more} if setting.unbounded else {EPSILON: rows.epsilons, **rows.more}


def _raw_alphabet(setting: Setting, on_unknown: OnUnknown | None, out: FilePath) -> Symbols:
    """With the policy for raw values: a file appears whole or not at all, standard output is watched as it goes."""
    alphabet = setting.model.alphabet
    if os.fspath(out) == "-":
        return alphabet.watched(on_unknown)
    return alphabet if on_unknown is None else alphabet.with_policy(on_unknown)


def unless_refused(account: Released, setting: Setting) -> Released:
    """The account of a file that is written; raises where rows are missing from it under the policy "error"."""
    if not account.refused:
        return account
    raise BudgetSpent(
        f"the budget is spent ({setting.budget.describe()}): {account.refused} of {account.events} rows are left out, "
        "all others are released for good",
        account,
    )


def _order_name(chunk: Chunk) -> str | None:
    return None if chunk.order is None else chunk.order.name


def refuse_overwriting(data: FilePath, out: FilePath, meta: FilePath | None, inputs: tuple[FilePath, ...]) -> None:
    taken = {os.path.realpath(path) for path in (data, out, *inputs) if os.fspath(path) != "-"}
    if meta is not None and os.path.realpath(meta) in taken:
        raise InputError("the side file would replace another file of this release; choose another name for it")


class Counted(Protocol):
    """What an account is made of: counts, and where users stand."""

    events: int
    held: int
    stopped: int
    refused: int
    choices: dict[str, dict[str, Any]]

    def standings(self) -> Standings: ...
    def secrets(self) -> list[SecretTotal]: ...


def account_of(setting: Setting, releaser: Counted, seed: int | None) -> Released:
    found = releaser.standings()
    composed, leaked = float(found.by_composition.max(initial=0.0)), float(found.leakage.max(initial=0.0))
    warnings = []
    if not setting.mechanism.sound:
        worst = int((found.leakage - found.by_composition).argmax())
        nominal, true = found.by_composition[worst], found.leakage[worst]
        warnings.append(
            f'mechanism "{setting.mechanism.name}" does not keep to its ε: the worst stream leaked {true:.4g}, '
            f"nominally {nominal:.4g}; use {'tree or auto' if setting.in_batches else 'optimal or balanced'} for a "
            "guarantee"
        )
    if seed is not None:
        warnings.append(SEEDED)
    return Released(
        events=releaser.events,
        users=len(found),
        releases=int(found.releases.sum()),
        held=releaser.held,
        stopped=releaser.stopped,
        leakage=leaked,
        composition=composed,
        ldp=float(found.ldp.max()),
        private=seed is None,
        guarantee=guarantee(setting),
        warnings=tuple(warnings),
        batch=setting.batch,
        exact=not setting.in_batches,
        choices=releaser.choices,
        refused=releaser.refused,
        secrets=tuple(releaser.secrets()),
        whole_sequence=NO_BOUND if setting.unbounded else "",
    )


def guarantee(setting: Setting) -> str:
    """What the setting promises, in plain words.

    >>> from seqveil.core.model import MarkovModel
    >>> model = MarkovModel([0.5, 0.5], [[0.9, 0.1], [0.1, 0.9]])
    >>> guarantee(Setting.of(model, epsilon=1.0))[:70]
    'each release moves what anyone who knows the model believes about a us'
    """
    if not setting.mechanism.sound:
        return (
            f'none: "{setting.mechanism.name}" is not sound ({setting.mechanism.guarantee}); its true leakage stands '
            "beside the nominal one"
        )
    kept = "; ".join(secret.sentence for secret in setting.secrets) if setting.guards else ""
    if setting.unbounded:
        return f"in total over a user's stream: {kept}; {NO_BOUND}"
    most, budget = setting.epsilon * setting.schedule.period, setting.budget
    what, many = ("batch", "batches") if setting.in_batches else ("release", "releases")
    size = f" of {setting.batch} events" if setting.in_batches else ""
    text = (
        f"each {what}{size} moves what anyone who knows the model believes about a user's whole sequence by at most a "
        f"factor e^{most:g} = {math.exp(most):.3g}, up or down"
    )
    if setting.schedule.period > 1:
        text += f" (e^{setting.epsilon:g} a {what} on average)"
    if budget.total is not None:
        text += f"; all {many} of a stream together by at most a factor e^{budget.total:g}"
    if budget.per_window is not None:
        places = many if setting.in_batches else "events"
        counted = f"{budget.releases} {places} in a row, whether released or not,"
        unit = counted if budget.releases else f"{budget.seconds:g} seconds"
        text += f"; those in any {unit} by at most a factor e^{budget.per_window:g}"
    if budget.ldp_total is not None:
        text += f"; without trust in any model, all {many} of a stream together are {budget.ldp_total:g}-LDP"
    return f"in total over a user's stream: {kept}; and {text}" if kept else text


def disk_full(
    setting: Setting, columns: Columns, order: str | None, seed: int | None, account: Released, digest: side.Digest
) -> side.Meta:
    counts = {name: getattr(account, name) for name in ("events", "users", "releases", "held", "stopped")}
    leaked = account.leakage if math.isfinite(account.leakage) else "inf"
    composed = account.composition if math.isfinite(account.composition) else "inf"
    told = {"leakage": leaked, "composition": composed, "digest": digest.hex()}
    more: dict[str, Any] = {"choices": account.choices} if account.choices else {}
    more |= {"refused": account.refused} if account.refused else {}
    more |= {"times": account.times} if account.times is not None else {}
    more |= {"secrets": [asdict(total) for total in account.secrets]} if account.secrets else {}
    more |= {"whole_sequence": account.whole_sequence} if account.whole_sequence else {}
    return side.header(setting, columns, order, seed) | counts | told | more
