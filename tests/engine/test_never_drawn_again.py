"""Calls of several events, enumerated whole: every raw sequence, every cut into calls, every outcome of every draw.

What a client sees must leak no more than the budget and the ledger say.
"""

import itertools
import json

import polars as pl
import pytest

import sparks
from benchmarks.calls import BUDGETS, POLICIES, InMemory, InStore, scripted, setting_of, worst, worst_of_all
from bridges import core_of
from filed import release_file
from seqveil.core.randomness import SeededRandomness
from seqveil.engine.streams import CodeStreams
from seqveil.interfaces.bridge.payloads import PayloadEvent
from seqveil.interfaces.events import EventJob
from seqveil.interfaces.service.writer import ReleaseWriter

WAYS = list(itertools.product(POLICIES, BUDGETS))


class InBridge(InStore):
    """The core of all bridges, with its messages."""

    def __init__(self, path, setting):
        super().__init__(path, setting)
        self._core = core_of(self.store)

    def call(self, seqs, raw):
        events = [PayloadEvent(self.user, seq, (code,)) for seq, code in zip(seqs, raw, strict=True)]
        return tuple(json.loads(one.payload)["value"] for one in self._core.release(events))


class InWriter(InStore):
    """The service's writer; another job shares each transaction."""

    def __init__(self, path, setting):
        super().__init__(path, setting)
        self._writer = ReleaseWriter(self.store)

    def call(self, seqs, raw):
        job = EventJob([self.user] * len(raw), list(seqs), list(raw), None)
        self._writer.release([EventJob([], [], [], None), job])
        return tuple(job.outcome.codes.tolist())


class InBucket:
    """Spark's bucket in memory: a micro-batch is a call."""

    def __init__(self, setting):
        self._setting = setting

    def begin(self):
        self._shelf = sparks.MapState()

    def call(self, seqs, raw):
        streams = sparks.bucket(self._setting, self._shelf, SeededRandomness(0))
        return tuple(streams.release(["ann"] * len(raw), raw, list(seqs)).codes.tolist())

    def ledger(self):
        _, _, _, most, least, *_ = self._shelf["ann",]
        return max(most, -least)


class InFile:
    """`release` of a file; parts of the file are parts of a call."""

    def __init__(self, folder, setting, cut):
        self._folder, self._setting, self._chunk = folder, setting, cut
        self._out = folder / "out.csv"

    def begin(self):
        self._said = 0.0
        self._out.unlink(missing_ok=True)

    def call(self, seqs, raw):
        data = self._folder / "data.csv"
        data.write_text("user,value\n" + "".join(f"ann,{code}\n" for code in raw))
        self._said = release_file(data, self._setting, self._out, chunk=self._chunk, force=True).leakage
        return tuple(pl.read_csv(self._out)["value"].to_list())

    def ledger(self):
        return self._said


class InState:
    """`release --state`."""

    def __init__(self, folder, setting, group):
        self._folder, self._setting, self._group, self._number = folder, setting, group, 0

    def begin(self):
        self._number += 1
        self._at = self._folder / f"{self._number}"
        self._at.mkdir()

    def call(self, seqs, raw):
        data, out = self._at / "data.csv", self._at / "out.csv"
        data.write_text("user,value\n" + "".join(f"ann,{code}\n" for code in raw))
        release_file(data, self._setting, out, state=self._at / "state.db", group=self._group)
        return tuple(pl.read_csv(out)["value"].to_list())

    def ledger(self):
        with CodeStreams.open(self._at / "state.db", self._setting) as store:
            account = store.account("ann")
            return 0.0 if account is None else account.leakage


def assert_sound(found):
    assert found.excess <= 1e-9


@pytest.mark.parametrize(("policy", "budget"), WAYS)
@pytest.mark.parametrize("length", [1, 2, *(pytest.param(more, marks=pytest.mark.slow) for more in (3, 4))])
def test_calls_to_streams_in_memory_leak_what_the_ledger_says(policy, budget, length):
    setting = setting_of(budget, policy)
    with scripted() as script:
        assert_sound(worst_of_all(InMemory(setting), script, setting, length))


@pytest.mark.slow
@pytest.mark.parametrize(("policy", "budget"), WAYS)
@pytest.mark.parametrize("place", [InStore, InBridge, InWriter])
def test_calls_to_a_store_a_bridge_and_a_service_leak_what_the_ledger_says(tmp_path, place, policy, budget):
    setting = setting_of(budget, policy)
    with scripted() as script:
        world = place(tmp_path / "s.db", setting)
        for length in (2, 3, 4) if place is InStore and budget == "total" else (3,):
            assert_sound(worst_of_all(world, script, setting, length))
        world.store.close()


@pytest.mark.slow
@pytest.mark.parametrize(("policy", "budget"), WAYS)
def test_micro_batches_leak_what_the_ledger_says(policy, budget):
    setting = setting_of(budget, policy)
    with scripted() as script:
        assert_sound(worst_of_all(InBucket(setting), script, setting, 4))


@pytest.mark.slow
@pytest.mark.parametrize("policy", POLICIES)
@pytest.mark.parametrize("chunk", [1, 2, 3])
def test_files_leak_what_the_ledger_says(tmp_path, policy, chunk):
    setting = setting_of("total", policy)
    with scripted() as script:
        leaked, excess = worst(InFile(tmp_path, setting, chunk), script, 3, [range(3)])
    assert leaked <= 1.8
    assert excess <= 1e-9


@pytest.mark.slow
@pytest.mark.parametrize(("policy", "group"), [("hold", 1), ("hold", 3), ("stop", 2)])
def test_files_with_a_state_leak_what_the_ledger_says(tmp_path, policy, group):
    setting = setting_of("total", policy)
    with scripted() as script:
        leaked, excess = worst(InState(tmp_path, setting, group), script, 3, [range(3)])
    assert leaked <= 1.8
    assert excess <= 1e-9
