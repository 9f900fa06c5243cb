"""Release a file from a cold start: without a model at first, and with one that is learned on the way."""

from __future__ import annotations

import os
from dataclasses import replace
from typing import Any

import numpy as np

from seqveil.core.errors import InputError, SeqveilError
from seqveil.core.kernel import Floats, Ints
from seqveil.engine.releases import Releases, Standings
from seqveil.engine.secrets import SecretTotal
from seqveil.interfaces.files import writing as side
from seqveil.interfaces.files.reading import FilePath
from seqveil.interfaces.files.release import Released, Whole
from seqveil.interfaces.files.rows import Events, Rows, Source
from seqveil.interfaces.files.writing import VERSION
from seqveil.receiver.coldstart import ColdStart

LEARNED = (
    "no model is trusted: each release is {most:g}-LDP whatever the truth is ({least:g}-LDP before anything was "
    "learned), and under the learned chain it was made with moves no belief about a user's whole sequence by more than "
    "a factor e^{least:g}, up or down"
)
UNLEARNED = "no model is trusted, and none was learned: each release is {least:g}-LDP whatever the truth is"


def versions_file(out: FilePath, named: FilePath | None = None) -> FilePath:
    """Where the versions of a cold start stand."""
    return f"{os.fspath(out)}.versions" if named is None else named


def learning(source: Source, start: ColdStart, out: FilePath, versions: FilePath | None, seed: int | None) -> Learning:
    """A run over a file from a cold start; `versions` is where they are written, if not beside the output."""
    return Learning(source, ColdStreams(start), versions_file(out, versions), seed)


class ColdStreams:
    """A cold start in the place of `Streams`: it learns the model from its own releases on the way."""

    def __init__(self, start: ColdStart) -> None:
        self.start = start
        self.numbers = np.zeros(0, np.int64)  # the version that made each event of the last call

    def release(self, users: list[Any], raw: Any, seqs: None, times: Floats | None) -> Releases:
        """Release the next event of each user named."""
        try:
            return self._noted(*self.start.release_codes(users, raw))
        except SeqveilError as error:
            error.made = None if error.made is None else self._noted(*error.made)
            raise

    def _noted(self, codes: Ints, epsilons: Floats, numbers: Ints) -> Releases:
        self.numbers = numbers
        return replace(Releases.none(np.zeros(codes.size, np.int64)), codes=codes, epsilons=epsilons)

    def standings(self) -> Standings:
        """Where every user stands, from the accounts of the cold start."""
        return self.start.accounts()

    def secrets(self) -> list[SecretTotal]:
        """None: a cold start takes no declared secrets."""
        return []


class Learning(Whole):
    """The output of a cold start: one more column, `version`, and beside it one public file with all versions."""

    remedy = "check the value column, or name all values with --alphabet"
    streams: ColdStreams

    def __init__(self, source: Source, streams: ColdStreams, versions: FilePath, seed: int | None) -> None:
        if os.fspath(versions) == "-.versions":
            raise InputError(
                "released rows on standard output leave no place for the versions; name a file by --versions"
            )
        first = streams.start.versions[0].setting
        super().__init__(source, first, first.model.alphabet, streams, seed)
        self.versions, self.beside = streams.start.versions, (versions,)

    def rows(self, events: Events, made: Releases) -> Rows:
        """The rows of what was released, each with the version of the model that released it."""
        return replace(super().rows(events, made), more={VERSION: self.streams.numbers[made.codes >= 0]})

    def account(self) -> Released:
        """The account, with the guarantee of a cold start in place of the setting's own."""
        account, learned = super().account(), len(self.versions) > 1
        once = self.setting.epsilon * self.setting.schedule.period
        text = (LEARNED if learned else UNLEARNED).format(least=once, most=2 * once)
        none = "no chain earned its place, so all rows were released without a model; more rows may help"
        return replace(account, guarantee=text, warnings=account.warnings if learned else (*account.warnings, none))

    def truth(self) -> float | None:
        """Not known: the releases are made under one chain after another."""
        return None

    def facts(self, account: Released) -> side.Meta:
        """What the side file says, with every version of the model; the versions are saved beside it."""
        self.versions.save(self.beside[0])
        more = {"model": side.fingerprint(self.versions), "versions": self.versions.describe()}
        return super().facts(account) | more
