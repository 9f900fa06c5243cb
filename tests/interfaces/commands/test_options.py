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


def test_no_command_has_many_options():
    """Which there are, docs/cli.md says, and a test of the docs that it is right."""
    counts = [sum(each.param_type_name == "option" for each in command_of(path).params) for path in LEAVES]
    assert max(counts) <= 24
    assert sum(counts) <= 240


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
def test_an_option_that_does_not_exist_is_answered_by_the_help_and_a_group_shows_its_commands(said):
    for path in LEAVES:
        name = f"seqveil {' '.join(path)}"
        code, err = said(*path, "--nonsense")
        assert (code, err.count("\n")) == (2, 1)
        assert all(part in err for part in ("--nonsense", f"see {name} --help")), err
    for group in GROUPS:
        code, err = said(*group)
        assert code == 2
        assert all(f"  {name} " in err for name in command_of(group).commands)


def test_a_missing_package_is_disclosed_by_its_extra_and_a_missing_module_of_ours_is_not():
    remedy = r"^the bridge needs paho; in the clone .* pip install -e '\.\[mqtt\]'$"
    with pytest.raises(InputError, match=remedy), needs_extra("the bridge", "mqtt"):
        raise ModuleNotFoundError(name="paho.mqtt")
    with pytest.raises(ModuleNotFoundError), needs_extra("the bridge", "mqtt"):
        raise ModuleNotFoundError(name="seqveil.lost")
