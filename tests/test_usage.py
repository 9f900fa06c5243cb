"""The first mistakes of a new user: every command answers in one line that says what to do."""

import shlex

import pytest
import typer

from seqveil.core.errors import InputError, needs_extra
from seqveil.interfaces.cli import app, main

ROOT = typer.main.get_command(app)


def below(command, path=()):
    """Every command under this one, with its path."""
    for name, found in getattr(command, "commands", {}).items():
        yield (*path, name), found
        yield from below(found, (*path, name))


# a group that does something by itself, as serve does, is a command too
GROUPS = [path for path, found in below(ROOT) if not getattr(found, "invoke_without_command", True)]
LEAVES = [path for path, found in below(ROOT) if path not in GROUPS]


def command_of(path):
    command = ROOT
    for name in path:
        command = command.commands[name]
    return command


COLUMNS = "user_column value_column time_column"
SECRETS = "secret secret_epsilon secret_window"
LIVE = "model policy state key begin gaps"
BRIDGE = f"{LIVE} payload metrics raw released errors"
SPARK = "user_column value_column seq_column format master log json"
OPTIONS = {  # all there are: an option more has to be worth it
    "inspect": f"{COLUMNS} format json",
    "fit": f"out context smoothing bins levels grid cell_metres other on_unknown private contribution alphabet range "
    f"{COLUMNS} format missing every_seconds slot utc_offset trait json",
    "plan": f"seen_by wrong wait {SECRETS} policy epsilon block distortion data length people plot out force {COLUMNS} "
    "json",
    "release": f"out model {SECRETS} policy epsilon batch block budget mechanism on_unknown seed {COLUMNS} format meta "
    "state key must_exist force yes json",
    "audit": f"model policy {SECRETS} secrets delta html attack meta json",
    "attack": f"truth model with_model {SECRETS} secrets who false_alarm splits seed plot meta jobs json",
    "decode": "model out online distortion histogram truth policy meta format json",
    "stats": "model confidence per top method policy meta json",
    "learn": "model out order strength confidence meta json",
    "compare": "model policy epsilon mechanisms batch block people first attack plot seed markdown jobs json",
    "mechanisms": "json",
    "studio": f"model {COLUMNS} port no_browser",
    "serve": f"{LIVE} on_unknown host port tokens no_auth tls_cert tls_key insecure rate",
    "serve token add": "scope user rate note expires json",
    "serve token list": "json",
    "serve token revoke": "json",
    "bridge mqtt": f"{BRIDGE} broker discovery ca cert password_file",
    "bridge kafka": f"{BRIDGE} bootstrap partitions client",
    "spark fit": f"out context smoothing {SPARK}",
    "spark release": f"model policy key out checkpoint follow time_column {SPARK}",
    "spark account": "user limit master log json",
    "state verify": "json",
    "state backup": "json",
    "state account": "user json",
    "state export": "out user",
    "state adopt": "model key",
    "state erase": "key forget_ledger yes",
}


def options_of(path):
    return {each.name for each in command_of(path).params if each.param_type_name == "option"}


def test_every_command_has_its_list_of_options_and_none_has_many():
    assert {" ".join(path) for path in LEAVES} == set(OPTIONS)
    assert max(len(names.split()) for names in OPTIONS.values()) <= 24
    assert sum(len(names.split()) for names in OPTIONS.values()) <= 240


@pytest.mark.parametrize("path", LEAVES, ids=" ".join)
def test_a_command_has_the_options_of_its_list_and_no_other(path):
    there, wanted = options_of(path), set(OPTIONS[" ".join(path)].split())
    assert there == wanted


@pytest.fixture
def said(capfd, tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)

    def run(*args):
        capfd.readouterr()
        code = main(list(args))
        out, err = capfd.readouterr()
        assert out == ""
        return code, err

    return run


@pytest.mark.parametrize("path", LEAVES, ids=" ".join)
def test_every_command_has_an_example_that_its_options_allow(path):
    command = command_of(path)
    examples = [part.partition("Example: ")[2] for part in command.help.split("\n\n") if "Example: " in part]
    assert examples, "its help shows no example"
    for example in examples:
        words = shlex.split(" ".join(example.split()))
        assert words[: 1 + len(path)] == ["seqveil", *path]
        spelled = {spelling for option in command.params for spelling in (*option.opts, *option.secondary_opts)}
        assert {word.partition("=")[0] for word in words if word.startswith("-") and word != "-"} <= spelled


@pytest.mark.slow
@pytest.mark.parametrize("path", LEAVES, ids=" ".join)
def test_an_option_that_does_not_exist_is_answered_with_an_example(path, said):
    code, err = said(*path, "--nonsense")
    assert code == 2
    assert err.count("\n") == 1
    assert "--nonsense" in err
    assert f"for example: seqveil {' '.join(path)}" in err
    assert f"(options: seqveil {' '.join(path)} --help)" in err


@pytest.mark.slow
@pytest.mark.parametrize("group", GROUPS, ids=" ".join)
def test_a_group_alone_names_its_commands(group, said):
    code, err = said(*group)
    assert code == 2
    assert err.count("\n") == 1
    assert f"expected a command after seqveil {' '.join(group)}: {', '.join(command_of(group).commands)}; see" in err


ALONE = {
    "leave out --secret-epsilon, --epsilon": ("--policy", "p.toml", "--epsilon", "1", "--secret-epsilon", "3"),
    "--secret has no total; add --secret-epsilon": ("--epsilon", "1", "--secret", "ever:1"),
    "pass --epsilon E": (),
}


@pytest.mark.slow
@pytest.mark.parametrize(("answer", "options"), ALONE.items(), ids=ALONE)
def test_options_that_need_another_name_it(answer, options, said, tmp_path):
    import seqveil as sv

    sv.MarkovModel([0.5, 0.5], [[0.9, 0.1], [0.1, 0.9]]).save(tmp_path / "m.model")
    (tmp_path / "d.csv").write_text("user,value\na,0\na,1\n")
    code, err = said("release", "d.csv", "--model", "m.model", "--out", "r.csv", *options)
    assert code == 2
    assert err.count("\n") == 1
    assert answer in err
    assert not (tmp_path / "r.csv").exists()


@pytest.mark.slow
def test_a_picture_without_a_folder_is_refused_before_anything_is_computed(said, tmp_path):
    for command in (("plan", "none.model"), ("compare", "none.csv", "-m", "m", "-e", "1")):
        code, err = said(*command, "--plot", "nowhere/p.png")
        assert (code, err) == (2, "error: expected the picture in a folder that exists; make it, or name another\n")


def test_a_missing_package_is_disclosed_by_its_extra_and_a_missing_module_of_ours_is_not():
    remedy = r"^the bridge needs paho; in the clone .* pip install -e '\.\[mqtt\]'$"
    with pytest.raises(InputError, match=remedy), needs_extra("the bridge", "mqtt"):
        raise ModuleNotFoundError(name="paho.mqtt")
    with pytest.raises(ModuleNotFoundError), needs_extra("the bridge", "mqtt"):
        raise ModuleNotFoundError(name="seqveil.lost")
