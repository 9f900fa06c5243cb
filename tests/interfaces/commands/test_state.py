"""`seqveil state` and its like: an operator looks at a state file, copies it and checks it, while a service runs."""

import json
import os
import sqlite3
import stat

import pytest

from filed import release_file
from policies import promise
from seqveil.engine.policy import Policy
from seqveil.engine.store import StoreError
from seqveil.engine.streams import CodeStreams
from seqveil.engine.upkeep import backup
from seqveil.interfaces.cli import main
from served import KEY, WORDS, words_model, words_setting


def filled(path, **how):
    store = CodeStreams.open(path, words_setting(), key=KEY, **how)
    store.release(["ann"] * 70 + ["bob"] * 3, [k % 4 for k in range(73)])
    return store


def run(capsys, *argv):
    code = main(["state", *map(str, argv)])
    disclosed = capsys.readouterr()
    return code, disclosed.out, disclosed.err


def test_a_file_in_use_is_verified_copied_and_read(tmp_path, capsys):
    with filled(tmp_path / "s.db") as store:
        assert run(capsys, "verify", tmp_path / "s.db")[0] == 0
        code, out, _ = run(capsys, "backup", tmp_path / "s.db", tmp_path / "copy.db")
        assert (code, "checked" in out) == (0, True)
        assert stat.S_IMODE((tmp_path / "copy.db").stat().st_mode) == 0o600
        code, out, _ = run(capsys, "account", tmp_path / "s.db", "--json")
        rows = json.loads(out)
        assert [(row["user"], row["events"]) for row in rows] == [("ann", 70), ("bob", 3)]
        assert rows[0]["leakage"] == store.account("ann").leakage
        code, _, _ = run(capsys, "export", tmp_path / "s.db", "--out", tmp_path / "o.jsonl")
        assert code == 0
        disclosed = [json.loads(line) for line in (tmp_path / "o.jsonl").read_text().splitlines()]
        assert [row["value"] for row in disclosed[:70]] == [WORDS[stored.code] for stored in store.releases("ann")]
        assert run(capsys, "account", tmp_path / "s.db", "--user", "bob")[1].splitlines()[1].startswith("bob   3 ")
        store.release(["ann"], [0])  # the writer was not put out
    with CodeStreams.open(tmp_path / "copy.db", words_setting(), key=KEY) as copy:
        assert copy.account("ann").events == 70


def test_damage_is_listed_and_never_copied(tmp_path, capsys):
    filled(tmp_path / "s.db").close()
    with sqlite3.connect(tmp_path / "s.db") as sql:
        sql.execute("UPDATE users SET spent = spent - 1 WHERE name = 'bob'")
    sql.close()
    code, out, _ = run(capsys, "verify", tmp_path / "s.db", "--json")
    found = json.loads(out)
    assert (code, found["sound"], found["damaged_users"]) == (1, False, [2])
    code, _, err = run(capsys, "backup", tmp_path / "s.db", tmp_path / "copy.db")
    assert code == 2
    assert "s.db: is damaged" in err
    assert not (tmp_path / "copy.db").exists()
    code, out, _ = run(capsys, "account", tmp_path / "s.db", "--json")
    assert [row.get("damaged", False) for row in json.loads(out)] == [False, True]
    (tmp_path / "copy.db").write_text("earlier")
    with sqlite3.connect(tmp_path / "s.db") as sql:
        sql.execute("DELETE FROM releases WHERE seq = 3")
    sql.close()
    with CodeStreams.open(tmp_path / "s.db", words_setting(), key=KEY) as store, pytest.raises(StoreError):
        backup(store.file, tmp_path / "copy.db")
    assert (tmp_path / "copy.db").read_text() == "earlier"


@pytest.mark.slow
def test_the_right_file_is_blamed(tmp_path, capsys):
    filled(tmp_path / "s.db").close()
    for target, blamed in (("none/c.db", "c.db: a copy cannot be written"), ("s.db", "s.db: is there already")):
        code, _, err = run(capsys, "backup", tmp_path / "s.db", tmp_path / target)
        assert (code, blamed in err) == (2, True), err
    for command in ("verify", "account"):
        code, _, err = run(capsys, command, tmp_path / "lost.db")
        assert (code, "lost.db: cannot be opened" in err) == (2, True)
        (tmp_path / "text.db").write_text("no state\n" * 100)
        code, _, err = run(capsys, command, tmp_path / "text.db")
        assert (code, "text.db: is damaged or no state file" in err) == (2, True)
    assert not list(tmp_path.glob("*.part*"))


def test_an_export_is_whole_or_not_there(tmp_path, capsys):
    filled(tmp_path / "s.db").close()
    command = ("export", tmp_path / "s.db", "--out", tmp_path / "o.jsonl")
    assert run(capsys, *command, "--user", "bob")[0] == 0
    assert len((tmp_path / "o.jsonl").read_text().splitlines()) == 3
    assert "is there already" in run(capsys, *command)[2]
    (tmp_path / "o.jsonl").unlink()
    code, _, err = run(capsys, *command, "--user", "bob", "--user", "nobody")
    assert (code, "nothing was released of this user" in err) == (2, True)
    assert not list(tmp_path.glob("o.jsonl*"))
    for out, why in (("", "is a folder"), (tmp_path / "no" / "o.jsonl", "o.jsonl: its folder does not exist")):
        code, _, err = run(capsys, "export", tmp_path / "s.db", "--out", out)
        assert (code, why in err) == (2, True)


@pytest.mark.slow
@pytest.mark.parametrize("kind", ["file", "empty", "fifo", "link", "dangling"])
def test_a_copy_is_written_over_nothing(tmp_path, seqveil, kind):
    with CodeStreams.open(tmp_path / "s.db", words_setting()) as store:
        store.release(["ann"], [0])
    target = tmp_path / "ledger"
    if kind == "fifo":
        os.mkfifo(target)
    elif kind in ("link", "dangling"):
        target.symlink_to(tmp_path / ("s.db" if kind == "link" else "none"))
    else:
        target.write_text("precious" if kind == "file" else "")
    before = os.lstat(target)
    found = seqveil("state", "backup", tmp_path / "s.db", target)
    assert (found.code, found.err.count("\n")) == (2, 1)
    assert os.lstat(target).st_ino == before.st_ino
    assert not (tmp_path / "none").exists()
    assert not list(tmp_path.glob("*.part"))


@pytest.mark.slow
def test_transactions_of_a_file_are_short_where_batches_take_long(tmp_path, monkeypatch):
    """A batch that takes 20 ms made transactions of 5 s; killed every 3 s they came to no end."""
    sizes, released = [], CodeStreams.release

    def slow(self, users, *rest, **more):
        sizes.append(len(users))
        return released(self, users, *rest, **more)

    monkeypatch.setattr(CodeStreams, "release", slow)
    (tmp_path / "d.csv").write_text("user,value\n" + "".join(f"u{k % 7},{WORDS[k % 4]}\n" for k in range(420)))
    setting = Policy(epsilon=0.7, batch=4, mechanism="tree").on(words_model())
    release_file(tmp_path / "d.csv", setting, tmp_path / "o.csv", state=tmp_path / "s.db")
    assert max(sizes) * 0.02 <= 1.5
    assert sum(sizes) == 105  # 15 batches of each of 7 users


def test_command_and_service_say_that_a_ledger_begins(tmp_path, capsys):
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
    assert "s.db is new: all accounts begin at zero" in capsys.readouterr().err
    assert main([*command, "--must-exist"]) == 0
    assert "begin at zero" not in capsys.readouterr().err
    words_model().save(tmp_path / "m")
    own = ["--model", str(tmp_path / "m"), *promise(epsilon=1.0), "--state", str(tmp_path / "none.db")]
    for live in (["serve", "--no-auth"], ["bridge", "mqtt", "--broker", "localhost:1"]):
        assert main([*live, *own]) == 2  # nothing is begun without being asked for
        assert "or pass --begin, for the first start alone" in capsys.readouterr().err
        assert not (tmp_path / "none.db").exists()
