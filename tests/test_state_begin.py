"""A ledger that begins at zero says so; a key and a setting are known again."""

import pytest

from seqveil.core.coins import key_mark
from seqveil.core.errors import DataError, InputError, ModelError
from seqveil.core.model import MarkovModel
from seqveil.engine.policy import Policy
from seqveil.engine.store.backup import facts_of, key_for
from seqveil.engine.store.database import Database
from seqveil.engine.streams import Streams
from seqveil.interfaces.cli import main
from served import running, words_model, words_setting

KEY = bytes(range(32))


def test_a_file_that_must_exist_is_not_begun(tmp_path):
    path = tmp_path / "s.db"
    for _ in range(2):
        with pytest.raises(DataError, match=r"expected a state file, and there is none or it is empty.*starts at zero"):
            Streams.open(path, words_setting(), must_exist=True)
        assert not [each for each in tmp_path.iterdir() if each != path]
        path.touch()
    path.unlink()
    with Streams.open(path, words_setting()) as first:
        assert first.begun
        began = first.began
    with Streams.open(path, words_setting(), must_exist=True) as again:
        assert not again.begun
        assert again.began == began


def test_tables_without_a_ledger_are_begun_anew(tmp_path):
    """A power cut after the first commit of all, which makes the tables, leaves a file that says nothing yet."""
    path = tmp_path / "s.db"
    Database(path, None).close()
    with pytest.raises(DataError, match="there is none or it is empty"):
        Streams.open(path, words_setting(), must_exist=True)
    with Streams.open(path, words_setting()) as first:
        assert first.begun


def test_another_key_or_none_is_refused(tmp_path):
    path = tmp_path / "s.db"
    Streams.open(path, words_setting(), key=KEY).close()
    assert facts_of(path)["key"] == key_mark(KEY)
    for other, said in ((None, "no key is given"), (bytes(32), "this is another one")):
        with pytest.raises(InputError, match=f"{key_mark(KEY)}, and {said}; pass that key"):
            Streams.open(path, words_setting(), key=other)
    Streams.open(path, words_setting(), key=KEY).close()


def test_a_lost_key_is_not_made_anew(tmp_path):
    state, key = tmp_path / "s.db", tmp_path / "key"
    secret = key_for(state, key)
    Streams.open(state, words_setting(), key=secret).close()
    key.unlink()
    with pytest.raises(InputError, match="the key cannot be read"):
        key_for(state, key)
    assert not key.exists()


def test_what_a_new_file_spends_is_said(tmp_path):
    path = tmp_path / "s.db"
    Streams.open(path, words_setting()).close()
    with pytest.raises(InputError, match=r"another epsilon.*a new file, whose ledger begins at zero"):
        Streams.open(path, Policy(epsilon=0.9, mechanism="balanced").on(words_model()))
    with pytest.raises(ModelError, match=r"another model.*a new file, whose ledger begins at zero"):
        Streams.open(
            path, Policy(epsilon=0.7, mechanism="balanced").on(MarkovModel([0.5, 0.5], [[0.9, 0.1], [0.1, 0.9]]))
        )


@pytest.mark.slow
def test_the_command_says_that_a_ledger_begins(tmp_path, capsys):
    words_model().save(tmp_path / "model")
    (tmp_path / "d.csv").write_text("user,value\nann,home\n")
    command = ["release", str(tmp_path / "d.csv"), "-m", str(tmp_path / "model"), "--epsilon", "1"]
    command += ["--out", str(tmp_path / "o.csv"), "--state", str(tmp_path / "s.db")]
    assert main([*command[:-2], "--must-exist"]) == 2
    assert "name it by --state" in capsys.readouterr().err
    assert main([*command, "--must-exist"]) == 2
    assert "restore it from a backup" in capsys.readouterr().err
    assert not (tmp_path / "s.db").exists()
    assert main(command) == 0
    assert "s.db is new: its ledger began at zero" in capsys.readouterr().err
    assert main([*command, "--must-exist"]) == 0
    assert "began at zero" not in capsys.readouterr().err


@pytest.mark.slow
def test_the_service_has_a_metric_of_when_its_ledger_began(tmp_path):
    with running(tmp_path, words_setting()) as service:
        text = service.ask("GET", "/metrics").content.decode()
        told = dict(line.split(" ") for line in text.splitlines() if line.startswith("seqveil_ledger"))
        assert float(told["seqveil_ledger_began_timestamp_seconds"]) == service.store.began
        assert "seqveil_ledger_new 1.0" in text
