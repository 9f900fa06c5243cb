"""`sv.attack`: attack released rows with the raw rows they were made from, as frames or paths."""

from __future__ import annotations

import os
from collections.abc import Mapping
from typing import Any, Unpack

from seqveil.core import html
from seqveil.core.alphabet import OnMissing
from seqveil.core.model import MarkovModel
from seqveil.evaluate import attack as attacks
from seqveil.evaluate.attack import Finding
from seqveil.evaluate.attack_files import attack_file
from seqveil.interfaces.files.in_memory import goes_back, in_order
from seqveil.interfaces.files.reading import FilePath
from seqveil.interfaces.files.writing import load_release_meta, stored_columns
from seqveil.interfaces.frames import ColumnWords, Release, SettingWords, chain_of, split_words, table_of


class Findings(list[Finding]):
    """What an attack found, one finding a secret; a table in a notebook."""

    def lines(self) -> list[tuple[str, str]]:
        """What was found, line by line."""
        from seqveil.evaluate.commands.attack import told

        return told(self)

    def __str__(self) -> str:
        return "\n".join(f"{name:<10} {text}" for name, text in self.lines())

    __repr__ = __str__

    def _repr_html_(self) -> str:
        return html.told("Attack", self.lines())


def attack(
    released: Any,
    truth: Any,
    model: MarkovModel | FilePath | None = None,
    *,
    meta: Any = None,
    who: bool = False,
    seed: int = 0,
    false_alarm: float = attacks.FALSE_ALARM,
    missing: OnMissing | None = None,
    with_model: Any = None,
    **words: Unpack[SettingWords],
) -> Findings:
    """Whether what was promised holds for the people of a release, as `seqveil attack` finds out.

    Parameters:
        released: what `release` gave back, or a frame or path of released rows.
        truth: the raw rows that it was made from, in any order that their times give.
        model: gives the alphabet, which numbers and places need.
        meta: `Release.meta`, or the path of a side file, where `released` has none with it.
        who: also whether people are recognised by their past.
        seed: splits the people.
        false_alarm: how likely a promise that holds may be called broken.
        missing: what was done with raw rows without a value, where that is not what the model says.
        with_model: models of Bayes attackers by name.
        words: secret, secrets, secret_epsilon and the like, and the columns.
    """
    if isinstance(released, Release):
        released, meta = released.frame, released.meta if meta is None else meta
    options, names = split_words(words)
    told = table_of(released)
    found = load_release_meta(told, meta)
    named = names if any(name in words for name in ColumnWords.__annotations__) else None
    tables = [told, table_of(truth)]
    for k, table in enumerate(tables):
        if not isinstance(table, str | os.PathLike) and goes_back(table, named or stored_columns(found)):
            tables[k] = table[in_order(table, named or stored_columns(found))]
    others: Mapping[str, Any] = with_model or {}
    return Findings(
        attack_file(
            tables[0],
            tables[1],
            None if model is None else chain_of(model),
            options.declared(),
            claimed=options.secret_epsilon,
            who=who,
            meta=found if meta is not None else None,
            columns=named,
            seed=seed,
            false_alarm=false_alarm,
            missing=missing,
            with_models={name: chain_of(other) for name, other in others.items()},
        )
    )


__all__ = ["Findings", "attack"]
