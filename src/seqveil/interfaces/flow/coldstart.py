"""Files without a model to begin with: release, audit and decode across the versions that a cold start learned.

A released file has one more column, `version`, and beside it stands one public file with all versions, models included
(`OUT.versions`). Rows are in the order they were released, so the version of every row follows from its place.
"""

from __future__ import annotations

import hashlib
import os
from collections.abc import Hashable, Iterator
from dataclasses import dataclass, replace
from typing import Any

import numpy as np

from seqveil.core import filtering
from seqveil.core.alphabet import Symbols
from seqveil.core.coins import known_as
from seqveil.core.distortion import Distortion, resolve
from seqveil.core.errors import BudgetSpent, DataError, InputError, ModelError, SeqveilError
from seqveil.core.kernel import Floats, Ints
from seqveil.interfaces.files import Chunk, Columns, Writer, read
from seqveil.interfaces.flow import meta as side
from seqveil.interfaces.flow.decode import Decoded, _Sheet, groups
from seqveil.interfaces.flow.fit import Distinct
from seqveil.interfaces.flow.meta import CONFIDENCE, EPSILON
from seqveil.interfaces.flow.release import SEEDED, Released, unless_refused
from seqveil.interfaces.flow.rows import CHUNK_ROWS, FilePath, Progress, Rows, Source, Table, value_type_of
from seqveil.interfaces.flow.verdict import not_checked
from seqveil.receive.audit import ROUNDING, Report, within, within_ldp
from seqveil.receive.coldstart import ColdStart, Receiver
from seqveil.receive.learn import Evidence
from seqveil.receive.versions import Versions
from seqveil.release.releases import Standings
from seqveil.release.stream import REFUSED

VERSION = "version"
GUARANTEE = (
    "no model is trusted: each release is {most:g}-LDP whatever the truth is ({least:g}-LDP before anything was "
    "learned), and under the learned chain it was made with moves no belief about a user's whole sequence by more than "
    "a factor e^{least:g}, up or down"
)

UNLEARNED = "no model is trusted, and none was learned: each release is {least:g}-LDP whatever the truth is"


def values_of(source: Source, progress: Progress | None = None) -> Symbols:
    """The alphabet of the values that occur in a file. That they occur becomes public."""
    scan = Distinct(source.name)
    for part in source.chunks("auto", progress, again=True):
        scan.add(part)
    return scan.alphabet()


def release_cold(
    data: FilePath,
    start: ColdStart,
    out: FilePath,
    *,
    columns: Columns | None = None,
    seed: int | None = None,
    format: str | None = None,
    out_format: str | None = None,
    sort: bool = False,
    meta: FilePath | None = None,
    versions: FilePath | None = None,
    force: bool = False,
    chunk: int = CHUNK_ROWS,
    progress: Progress | None = None,
) -> Released:
    """Release every row of a file by a cold start, learning on the way, and write the versions beside it.

    *Guarantee*: that of `ColdStart`. Output, side file and versions appear when all rows are released. All that was
    drawn is in them: where a user's budget is spent and the policy is "error", its rows from there on are left out, and
    BudgetSpent is raised with the account when all is written.
    """
    if os.fspath(out) == "-" and versions is None:
        raise InputError("released rows on standard output leave no place for the versions; name a file by --versions")
    source = Source(data, columns or Columns(), format, sort, chunk)
    alphabet = start.versions.alphabet
    table, digest, order, held = Table(alphabet, source.columns), side.Digest(), None, 0
    taking = _Taking(start)
    with Writer(out, out_format, (data,)) as writer:
        side.refuse_second(out, meta, versions_file(out, versions), force=force)
        for part, codes in source.coded(alphabet, progress):
            rows = taking.rows(part, codes)
            writer.write(table.frame(rows.chunk, rows.codes, {EPSILON: rows.epsilons, **rows.more}))
            digest.add(rows.users, rows.codes, rows.epsilons)
            held += int((rows.epsilons == 0).sum())
            order = None if part.order is None else part.order.name
            if taking.failure is not None:
                break
        account = replace(_account(start, held, seed), events=start.events + taking.refused, refused=taking.refused)
        start.save(versions_file(out, versions))
        side.save(_facts(start.versions, source.columns, order, seed, account, digest), out, meta)
    if taking.failure is not None:
        raise taking.failure
    return unless_refused(account, start.versions.last.setting)


class _Taking:
    """Takes the rows of a file, but for those of users who were refused once."""

    def __init__(self, start: ColdStart) -> None:
        self._start, self._spent = start, set[Hashable]()
        self.refused = 0
        self.failure: SeqveilError | None = None  # why no more can be released; what was stands

    def rows(self, part: Chunk, codes: Ints) -> Rows:
        users = part.users.to_list()
        left = np.array([k for k, user in enumerate(users) if user not in self._spent], np.intp)
        try:
            released, epsilons, numbers = self._start.release_codes([users[k] for k in left], codes[left])
        except SeqveilError as error:
            if error.made is None:
                raise
            released, epsilons, numbers = error.made
            if not isinstance(error, BudgetSpent):
                self.failure = error
        made = np.flatnonzero(released != REFUSED)
        self._spent.update(users[k] for k in left[released == REFUSED])
        self.refused += part.n - made.size
        at = left[made]
        order = None if part.order is None else part.order.gather(at)
        return Rows(part.users.gather(at), order, released[made], epsilons[made], {VERSION: numbers[made]})


def versions_file(out: FilePath, named: FilePath | None = None) -> FilePath:
    """Where the versions of a released file stand."""
    return f"{os.fspath(out)}.versions" if named is None else named


def _account(start: ColdStart, held: int, seed: int | None) -> Released:
    accounts, setting = start.accounts(), start.versions[0].setting
    once = setting.epsilon * setting.schedule.period
    warnings = [] if seed is None else [SEEDED]
    if len(start.versions) == 1:
        warnings.append("no chain earned its place, so all rows were released without a model; more rows may help")
    return Released(
        events=start.events,
        users=len(accounts.users),
        releases=start.events,
        held=held,
        stopped=0,
        leakage=float(accounts.leakage.max(initial=0.0)),
        composition=float(accounts.by_composition.max(initial=0.0)),
        ldp=float(accounts.ldp.max(initial=0.0)),
        private=seed is None,
        guarantee=(GUARANTEE if len(start.versions) > 1 else UNLEARNED).format(least=once, most=2 * once),
        warnings=tuple(warnings),
    )


def _facts(
    versions: Versions, columns: Columns, order: str | None, seed: int | None, account: Released, digest: side.Digest
) -> side.Meta:
    counts = {name: getattr(account, name) for name in ("events", "users", "releases", "held", "stopped")}
    counts |= {"refused": account.refused} if account.refused else {}
    told = {"leakage": account.leakage, "composition": account.composition, "digest": digest.hex()}
    head = side.header(versions[0].setting, columns, order, seed)
    return head | counts | told | {"model": fingerprint(versions), "versions": versions.describe()}


def fingerprint(versions: Versions) -> str:
    """Of all versions together; no single model has it, so none is taken for them."""
    text = " ".join(f"{v.number} {v.after} {v.setting.model.fingerprint}" for v in versions)
    return "versions " + hashlib.sha256(text.encode()).hexdigest()


@dataclass(frozen=True)
class _Received:
    """A released file and its versions."""

    source: Source
    versions: Versions
    meta: side.Meta | None

    @classmethod
    def of(
        cls, released: FilePath, versions: Versions, meta: FilePath | None, columns: Columns | None, format: str | None
    ) -> _Received:
        found = side.load(released, meta)
        if found is not None and found.get("model") != fingerprint(versions):
            raise ModelError("the versions are not those the release was made with; name the file beside the release")
        return cls(Source(released, columns or side.stored_columns(found), format), versions, found)

    def chunks(self, progress: Progress | None) -> Iterator[tuple[Chunk, Ints, Floats]]:
        """Rows, codes, and the columns ε and version as the file has them."""
        columns = replace(self.source.columns, value=f"{EPSILON},{VERSION}")
        claimed = read(self.source.path, columns, self.source.chunk, self.source.format, "number")
        for part, codes in self.source.coded(self.versions.alphabet.with_policy("error"), progress):
            try:
                yield part, codes, np.asarray(next(claimed).values, np.float64)
            except DataError as error:
                if "no column" not in str(error):
                    raise
                raise DataError(
                    f"{self.source.name}: a cold start writes the columns {EPSILON!r} and {VERSION!r}; keep all columns"
                ) from None


def audit_cold(
    released: FilePath,
    versions: Versions,
    *,
    meta: FilePath | None = None,
    columns: Columns | None = None,
    format: str | None = None,
    progress: Progress | None = None,
) -> Report:
    """What the releases of a cold start leaked, exactly, from the file and the versions alone.

    Each release is checked against its ε under the chain it was made with; each stream's leakage is exact under the
    last chain, and checked against Σε with twice the ε of versions between the first and the last.
    """
    found = _Received.of(released, versions, meta, columns, format)
    receiver, digest = Receiver(versions), side.Digest()
    each = same = True
    held = at = 0
    middle = _Middle(versions)
    for part, codes, claimed in found.chunks(progress):
        users = part.users.to_list()
        try:
            used, costs = receiver.observe(users, codes)
        except DataError as error:
            raise DataError(f"{found.source.name}: rows {part.row(0)} to {part.row(part.n - 1)}: {error}") from None
        numbers = np.searchsorted([v.after for v in versions], at + np.arange(part.n), side="right") - 1
        each &= within(costs, used)
        same &= bool((np.abs(claimed[:, 0] - used) <= ROUNDING * (1 + used)).all() and (claimed[:, 1] == numbers).all())
        middle.add(users, numbers, used)
        digest.add(part.users, codes, claimed[:, 0])
        held += int((used == 0).sum())
        at += part.n
    checks = {"each_release": each, "epsilons": same, "unchanged": _unchanged(found.meta, digest)}
    checks["unseeded"] = side.unseeded(found.meta)
    return _report(receiver, middle, held, checks)


class _Middle:
    """Σε of each user's releases by versions that are neither the first nor the last."""

    def __init__(self, versions: Versions) -> None:
        self._last = versions.last.number
        self.between: dict[Hashable, float] = {}

    def add(self, users: list[Any], numbers: Ints, used: Floats) -> None:
        for k in np.flatnonzero((numbers > 0) & (numbers < self._last) & (used > 0)).tolist():
            user = known_as(users[k])
            self.between[user] = self.between.get(user, 0.0) + float(used[k])


def _unchanged(meta: side.Meta | None, digest: side.Digest) -> bool | None:
    claimed = None if meta is None else meta.get("digest")
    return None if claimed is None else claimed == digest.hex()


def _report(receiver: Receiver, middle: _Middle, held: int, checks: dict[str, Any]) -> Report:
    accounts: Standings = receiver.accounts()
    leaked, worst = accounts.leakage, int(accounts.leakage.argmax())
    more = np.array([middle.between.get(user, 0.0) for user in accounts.users])
    bound, budget = accounts.by_composition + more, receiver.versions[0].setting.budget
    total = None if budget.total is None or len(receiver.versions) > 2 else bool(
        leaked[worst] <= budget.total * (1 + ROUNDING)
    )  # fmt: skip
    return Report(
        users=len(accounts.users),
        releases=receiver.events,
        held=held,
        leakage=float(leaked[worst]),
        most=float(accounts.most[worst]),
        least=float(accounts.least[worst]),
        worst_user=accounts.users[worst],
        composition=float(accounts.by_composition.max()),
        worst_release=receiver.worst_release,
        worst_window=None,
        ldp=float(accounts.ldp.max()),
        each_release=checks["each_release"],
        each_stream=within(leaked, bound),
        total=total,
        ldp_total=within_ldp(budget, accounts),
        window=None,
        epsilons=checks["epsilons"],
        unchanged=checks["unchanged"],
        composed=None,
        unseeded=checks["unseeded"],
    )


def evidence_of(
    released: FilePath,
    versions: Versions,
    *,
    meta: FilePath | None = None,
    columns: Columns | None = None,
    format: str | None = None,
    progress: Progress | None = None,
) -> tuple[Evidence, list[Hashable]]:
    """All releases of a file as evidence, row by row in its order, users numbered as they come, and their names."""
    found = _Received.of(released, versions, meta, columns, format)
    receiver = Receiver(versions, keep=True)
    for part, codes, _ in found.chunks(progress):
        receiver.observe(part.users.to_list(), codes)
    return receiver.evidence(), receiver.accounts().users


def decode_cold(
    released: FilePath,
    versions: Versions,
    out: FilePath,
    *,
    online: bool = False,
    distortion: str | Distortion | None = None,
    meta: FilePath | None = None,
    columns: Columns | None = None,
    format: str | None = None,
    out_format: str | None = None,
    inputs: tuple[FilePath, ...] = (),
    progress: Progress | None = None,
) -> Decoded:
    """Write the best estimate of every row, all of them under the last version's chain, which knows most.

    The columns Q(y|·) of early rows are those of the version that made them; only the chain is the last one's.
    """
    found = _Received.of(released, versions, meta, columns, format)
    evidence, users = evidence_of(released, versions, meta=meta, columns=columns, format=format, progress=progress)
    setting = versions.last.setting
    loss = setting.distortion if distortion is None else resolve(distortion, versions.alphabet)
    sheet, at = _Sheet(evidence.events, loss, evidence.n), 0
    for places in groups(evidence.users, 2 * setting.model.size + 2 * evidence.n, online=False):
        said = evidence.table[evidence.index[places.T]]
        sheet.fill(places, filtering.laws(setting.model, said, smoothed=not online))
    table = Table(versions.alphabet, found.source.columns)
    with Writer(out, out_format, (released, *inputs)) as writer:
        for part in found.source.chunks(value_type_of(versions.alphabet), progress, again=True):
            rows = slice(at, at + part.n)
            more = {CONFIDENCE: sheet.confidence[rows]}
            writer.write(table.frame(part, sheet.estimates[rows].astype(np.int64), more))
            at += part.n
    sure = float(sheet.confidence.mean(dtype=np.float64))
    learned = "the chain was learned from these very releases"
    why = learned if len(versions) > 1 else "nothing was learned, so there is no chain to hold against them"
    return Decoded(at, len(users), sure, sheet.expected, not_checked(why))
