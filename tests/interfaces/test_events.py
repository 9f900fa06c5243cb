"""Events of several senders in one transaction, and their answers: each hears how its own went, as text at once."""

import json
import math
from dataclasses import fields

import numpy as np
import pytest

from reference import streams as ref
from seqveil.core.alphabet import Alphabet, Grid
from seqveil.core.errors import InputError
from seqveil.engine.budget import Budget
from seqveil.engine.calls import OutOfOrder
from seqveil.engine.policy import Policy
from seqveil.engine.store import GAP, Account, Releases, Stored, StoreError
from seqveil.engine.stream import NOTHING, REFUSED
from seqveil.engine.streams import CodeStreams
from seqveil.interfaces.events import EventJob, Wording, release_together
from seqveil.interfaces.service.messages import released, user_of
from served import salt_of, words_model, words_setting

KEY = bytes(range(32))


def job(user, *seqs, raw=None, times=None):
    return EventJob([user] * len(seqs), list(seqs), raw or [0] * len(seqs), times)


def transactions(store, jobs):
    """How many transactions it takes to release them."""
    made, release = [], store.release
    store.release = lambda *given: made.append(release(*given)) or made[-1]
    release_together(store, jobs)
    return len(made)


def opened(path, **options):
    return CodeStreams.open(path / "state.db", words_setting(**options), key=KEY)


def test_each_job_gets_its_own_part_of_one_transaction(tmp_path):
    jobs = [job("ann", 0, 1), job("bob", 0), EventJob([], [], [], None), job("ann", 2, 1)]
    with opened(tmp_path) as together:
        alone = ref.twin(words_setting(), salt_of(tmp_path / "state.db"))
        assert transactions(together, jobs) == 1
        expected = [alone.release(each.users, each.raw, each.seqs) for each in jobs]
    for each, made in zip(jobs, expected, strict=True):
        assert isinstance(each.outcome, Releases)
        for column in fields(Releases):
            one, other = getattr(each.outcome, column.name), getattr(made, column.name)
            assert one is other is None or np.array_equal(one, other, equal_nan=column.name == "leakages")


def test_whoever_leaves_events_out_is_disclosed_what_was_next_and_holds_up_nobody(tmp_path):
    jobs = [job("ann", 0), job("bob", 0, 2), job("ann", 5), job("ann", 1)]
    with opened(tmp_path) as store:
        assert transactions(store, jobs) == 1
        assert store.next_seqs(["ann", "bob"]).tolist() == [2, 0]
    assert [type(each.outcome) for each in jobs] == [Releases, OutOfOrder, OutOfOrder, Releases]
    assert [(each.outcome.position, each.outcome.upcoming) for each in jobs[1:3]] == [(1, 1), (0, 1)]


@pytest.mark.parametrize("wrong", range(5))
def test_a_job_that_cannot_be_is_found_wherever_it_stands(tmp_path, wrong):
    budget = Budget(per_window=1.0, seconds=5.0)
    jobs = [job(f"user {k}", 0, 1, times=[20.0, 10.0 if k == wrong else 30.0]) for k in range(5)]
    with opened(tmp_path, budget=budget) as store:
        assert 1 < transactions(store, jobs) < 5
        assert store.next_seqs([f"user {k}" for k in range(5)]).tolist() == [0 if k == wrong else 2 for k in range(5)]
    assert [isinstance(each.outcome, InputError) for each in jobs] == [k == wrong for k in range(5)]


def test_the_disk_s_trouble_is_everyone_s(tmp_path):
    jobs = [job("ann", 0), job("bob", 0)]
    with opened(tmp_path) as store:
        store.close()
        assert transactions(store, jobs) == 0
    assert all(isinstance(each.outcome, StoreError) for each in jobs)


NAMES = ["ann", 'a"b\\c', "Ærø 東京 🙂", "\u200f</script>", "x" * 256]
WORDINGS = [Wording(Alphabet(['q"', None, True, 1.5])), Wording(Grid.regular(2, 2, bounds=(0, 4, 0, 2)))]


@pytest.mark.parametrize("wording", WORDINGS)
def test_releases_of_symbols_are_disclosed_as_they_are(wording):
    codes = np.array([0, 3, NOTHING, REFUSED, GAP])
    made = Releases(codes, np.arange(5), np.array([1.0, 1e-9, 0.0, 0.0, math.inf]), codes == 3, np.zeros(5), None)
    rows = json.loads(released(NAMES, made, wording).body)["releases"]
    assert [row["user"] for row in rows] == [*NAMES[:3], NAMES[4]]
    assert [row["value"] for row in rows] == [wording.shown[0], wording.shown[3], None, None]
    assert [row["status"] for row in rows] == ["released", "released", "withheld", "given-up"]
    assert [row["epsilon"] for row in rows] == [1.0, 1e-9, 0.0, None]
    assert [row["replayed"] for row in rows] == [False, True, False, False]
    assert list(rows[0]) == ["user", "seq", "status", "value", "epsilon", "replayed"]


def test_releases_of_batches_are_disclosed_as_they_are():
    wording = WORDINGS[0]
    sent = [((2, 0), np.array([3, 1, 0])), None]
    made = Releases(np.array([0, NOTHING]), np.arange(2), np.ones(2), np.zeros(2, bool), np.zeros(2), sent)
    first, second = json.loads(released(NAMES[:2], made, wording).body)["releases"]
    assert (first["values"], first["path"]) == ([1.5, None, 'q"'], [2, 0])
    assert (second["values"], second["path"], second["status"]) == (None, None, "withheld")


@pytest.mark.parametrize("batches", [False, True])
def test_a_page_is_disclosed_as_it_is(batches):
    wording, terms = WORDINGS[0], Policy(epsilon=2.0, batch=3).on(words_model()) if batches else words_setting()
    stored = [
        Stored(7, 0, 0.5, None, (0,), (0,)),
        Stored(8, NOTHING, 0.0, math.nan, None, ()),
        Stored(9, GAP, 0.0, 12.25, None, ()),
        Stored(10, 0, 0.5, 1e9, (0,), (0,)),
    ]
    account = Account(NAMES[1], 11, 2, 1.0, 1.0, -math.inf, 1.0, math.inf, None, True)
    page = json.loads(user_of(account, stored, 7, 3, wording, terms).body)
    assert (page["account"]["user"], page["next"], page["more"]) == (NAMES[1], 10, True)
    assert (page["account"]["least"], page["account"]["ldp"]) == ("-inf", "inf")
    assert [row["status"] for row in page["releases"]] == ["released", "withheld", "given-up"]
    assert [row["time"] for row in page["releases"]] == [None, None, 12.25]
    if batches:
        assert [row["values"] for row in page["releases"]] == [['q"'], None, None]
        assert [row["events"] for row in page["releases"]] == [1, 1, 3]  # a batch that was given up was whole
    else:
        assert [row["value"] for row in page["releases"]] == ['q"', None, None]
    nothing = json.loads(user_of(account, [], 5, 3, wording, terms).body)
    assert (nothing["releases"], nothing["next"], nothing["more"]) == ([], 5, False)
