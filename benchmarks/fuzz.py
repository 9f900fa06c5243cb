"""Nonsense: requests made from the service's own OpenAPI document, bytes that are hardly HTTP, and commands with random
options over files that are spoilt.

Counted are answers of 500, and stalls: an honest event that took longer than a second while the nonsense went on. Of
commands: exit codes that no page names, tracebacks, internal errors, what took longer than a minute, and raw values on
standard error. SEQVEIL_FUZZ_SECONDS says how long each part takes (300). `python -m benchmarks.fuzz CASE` runs one case
of the commands again and shows it.
"""

from __future__ import annotations

import gzip
import io
import json
import os
import random
import re
import shutil
import socket
import sys
import tempfile
import time
from collections import Counter
from collections.abc import Callable
from contextlib import redirect_stderr
from multiprocessing.connection import Connection
from pathlib import Path
from typing import Any

import typer

from benchmarks.abuse import CONTEXT, event, post
from benchmarks.service import serving
from seqveil.interfaces.cli import app, main

SECONDS = float(os.environ.get("SEQVEIL_FUZZ_SECONDS", "300"))
STALL = 1000.0  # milliseconds
SEED = 7


def run(data: Path | None) -> dict[str, object]:
    found: dict[str, object] = {}
    for name, act in (("OpenAPI", from_schema), ("raw sockets", raw_bytes)):
        with serving("admin") as (port, token), Honest(port, token) as honest:
            answers = act(port, token, time.monotonic() + SECONDS)
        failures = sum(count for status, count in answers.items() if status == 500)
        stalls = sum(wait > STALL for wait in honest.waits)
        disclosed = (
            f"{sum(answers.values()):,} requests, {failures} answers of 500; {len(honest.waits):,} honest events, "
        )
        disclosed += f"{honest.refused} refused, {stalls} longer than a second (the longest {max(honest.waits):.0f} ms,"
        disclosed += f" on a machine where the sender woke up to {honest.late:.0f} ms late)"
        print(f"{name}, {SECONDS:g} s: {disclosed}", flush=True)
        print("  " + "  ".join(f"{status}: {count:,}" for status, count in sorted(answers.items())))
        found[name] = {"requests": sum(answers.values()), "500": failures, "stalls": stalls, "refused": honest.refused}
    return found | {"commands": commands(time.monotonic() + SECONDS)}


class Honest:
    """Somebody who sends an event every 50 ms meanwhile, in a process of its own, and how long each took."""

    def __init__(self, port: int, token: str) -> None:
        self._ending, self._disclosed = CONTEXT.Event(), CONTEXT.SimpleQueue()
        self._process = CONTEXT.Process(target=send_honestly, args=(port, token, self._ending, self._disclosed))
        self.waits: list[float] = []
        self.refused, self.late = 0, 0.0

    def __enter__(self) -> Honest:
        self._process.start()
        return self

    def __exit__(self, *error: object) -> None:
        self._ending.set()
        self.waits, self.refused, self.late = self._disclosed.get()
        self._process.join()


def send_honestly(port: int, token: str, ending: Any, disclosed: Any) -> None:
    seq, refused, waits, late, begin = 0, 0, list[float](), 0.0, time.perf_counter()
    while not ending.wait(0.05):
        late = max(late, time.perf_counter() - begin - 0.05)  # which no service can change
        begin = time.perf_counter()
        if post(port, token, [event("honest", seq)]) == 200:
            seq += 1
        else:
            refused += 1
        waits.append(1000 * (time.perf_counter() - begin))
        begin = time.perf_counter()
    disclosed.put((waits, refused, 1000 * late))


def from_schema(port: int, token: str, end: float) -> Counter[int]:
    """Requests that fit the document, and requests that do not, in turn over all operations."""
    import schemathesis
    from hypothesis import HealthCheck, Phase, given, seed, settings
    from hypothesis.errors import Unsatisfiable

    document = schemathesis.openapi.from_url(f"http://127.0.0.1:{port}/openapi.json")
    operations = [found.ok() for found in document.get_all_operations()]
    answers: Counter[int] = Counter()
    headers = {"Authorization": f"Bearer {token}"}
    dice, few = random.Random(SEED), settings(max_examples=30, deadline=None, database=None)

    def try_all(operation: object, mode: schemathesis.GenerationMode) -> None:
        @seed(dice.randrange(1 << 30))
        @settings(few, phases=[Phase.generate], suppress_health_check=list(HealthCheck))
        @given(case=operation.as_strategy(generation_mode=mode))  # type: ignore[attr-defined]
        def send(case: object) -> None:
            if time.monotonic() < end:
                answers[case.call(headers=headers, timeout=30).status_code] += 1  # type: ignore[attr-defined]

        send()

    impossible: set[tuple[int, str]] = set()
    while time.monotonic() < end:
        for k, operation in enumerate(operations):
            for mode in schemathesis.GenerationMode:
                if (k, str(mode)) in impossible or time.monotonic() > end:
                    continue
                try:
                    try_all(operation, mode)
                except Unsatisfiable:  # nothing about it can be wrong
                    impossible.add((k, str(mode)))
    return answers


def raw_bytes(port: int, token: str, end: float) -> Counter[int]:
    """Requests spoilt in every way that the list below has, several ways at once."""
    dice, answers = random.Random(SEED), Counter[int]()
    while time.monotonic() < end:
        content = request(token, dice)
        for _ in range(dice.randrange(4)):
            content = dice.choice(SPOILT)(content, dice)
        try:
            answers[exchange(port, content, dice)] += 1
        except OSError:
            answers[0] += 1  # closed on the way
    return answers


def request(token: str, dice: random.Random) -> bytes:
    body = json.dumps(dice.choice([{"events": [event(f"fuzz {k}", 0) for k in range(5)]}, event("fuzz", 0), [], "x"]))
    method, path = dice.choice([("POST", "/v1/release"), ("GET", "/v1/users/fuzz"), ("GET", "/readyz")])
    who = dice.choice([token, token, "sv_x_y", ""])
    head = f"{method} {path} HTTP/1.1\r\nHost: localhost\r\nAuthorization: Bearer {who}\r\n"
    return f"{head}Content-Type: application/json\r\nContent-Length: {len(body)}\r\n\r\n{body}".encode()


def exchange(port: int, content: bytes, dice: random.Random) -> int:
    """Send it, whole or in pieces, and read the first status; 0 where none came."""
    with socket.create_connection(("127.0.0.1", port), timeout=5) as line:
        cut = dice.randrange(len(content) + 1) if dice.random() < 0.3 else len(content)
        line.sendall(content[:cut])
        line.sendall(content[cut:])
        if dice.random() < 0.1:
            return 0  # gone before the answer
        line.settimeout(0.3)
        found = line.recv(12)
        return int(found[9:12]) if found.startswith(b"HTTP/1.1 ") and found[9:12].isdigit() else 0


def flip(content: bytes, dice: random.Random) -> bytes:
    some = bytearray(content)
    for _ in range(dice.randrange(1, 8)):
        some[dice.randrange(len(some))] = dice.randrange(256)
    return bytes(some)


def insert(content: bytes, dice: random.Random) -> bytes:
    at = dice.randrange(len(content))
    return content[:at] + dice.randbytes(dice.choice([1, 10, 1000, 50_000])) + content[at:]


def shorten(content: bytes, dice: random.Random) -> bytes:
    return content[: dice.randrange(1, len(content) + 1)]


def lie_about_length(content: bytes, dice: random.Random) -> bytes:
    said = dice.choice([b"-1", b"999999999999", b"0", b"1e3", b"\xc2\xb2", b""])
    return content.replace(b"Content-Length: ", b"Content-Length: " + said + b"\r\nX: ", 1)


def chunked(content: bytes, dice: random.Random) -> bytes:
    head, _, body = content.partition(b"\r\n\r\n")
    size = dice.choice([b"%x" % len(body), b"ffffffffffffffff", b"zz", b"-5"])
    return head + b"\r\nTransfer-Encoding: chunked\r\n\r\n" + size + b"\r\n" + body + b"\r\n0\r\n\r\n"


def twice(content: bytes, dice: random.Random) -> bytes:
    return content * dice.randrange(2, 30)


def large_head(content: bytes, dice: random.Random) -> bytes:
    more = b"X: " + b"y" * dice.choice([100, 30_000, 40_000, 200_000]) + b"\r\n"
    return content.replace(b"\r\n", b"\r\n" + more, 1)


def odd_path(content: bytes, dice: random.Random) -> bytes:
    path = dice.choice([b"/v1/users/%ff%fe", b"/v1/users/" + b"%2F" * 500 + b"?since=-1", b"*", b"//", b"/%00"])
    return content.replace(b"/v1/release", path, 1)


def odd_json(content: bytes, dice: random.Random) -> bytes:
    head, _, _ = content.partition(b"\r\n\r\n")
    body = dice.choice(
        [
            b"[" * 100_000,
            b'{"events": ' + b"[" * 5000,
            b'{"user": "\\ud800", "seq": 0, "value": 1}',
            b'{"user": "a", "seq": 1e400, "value": NaN}',
            b'{"user": "a", "seq": ' + b"9" * 5000 + b', "value": 0}',
            b"\xff\xfe{}",
            b'{"user": "a", "user": "b", "seq": 0, "value": {"a": {}}}',
        ]
    )
    head = b"\r\n".join(line for line in head.split(b"\r\n") if not line.startswith(b"Content-Length"))
    return head + b"\r\nContent-Length: %d\r\n\r\n" % len(body) + body


SPOILT: tuple[Callable[[bytes, random.Random], bytes], ...] = (
    flip,
    insert,
    shorten,
    lie_about_length,
    chunked,
    twice,
    large_head,
    odd_path,
    odd_json,
)


# commands

LONG = 60.0  # seconds of one command
USER, RAW = "zquser", "zqraw"  # in every name of a user, and in every value that the model does not have
LEAK = re.compile(f"{USER}|{RAW}|8675309", re.IGNORECASE)
WRONG = re.compile("Traceback|internal error|panicked|Warning:")
KNOWN = ("home", "work", "gym", "shop")
COLUMNS = ("user", "value", "time", "seq", "lat,lon", "user,value", "", "VALUE", "nobody")
NUMBERS = ("0", "1", "2", "5", "12", "0.5", "1.0", "3.7", "-1", "1e-9", "1e6", "1e400", "nan", "inf", str(2**70))
ODD = ("", " ", ".", ",", ":", "1,2", "0.5,2", "a" * 3000, "\udcff", "\n", "../x", "{", "ever", "2024-01-01", "10:30")
SECRETS = ("ever:home", "count:gym:2", "followed_by:home:work", "always:shop", "ever:nobody", "ever", "count:gym:-1")
ENCODINGS = ("utf-8-sig", "utf-16", "latin-1", "cp037")
FILES = {  # by the name of a parameter
    **dict.fromkeys(("data", "source", "truth"), "data"),
    **{name: name for name in ("released", "meta", "state", "key", "policy", "alphabet")},
    **dict.fromkeys(("out", "html"), "out"),
    **dict.fromkeys(("model", "with_model"), "model"),
    "file": "state",
}
POLICIES = (
    "epsilon = 1.0",
    "epsilon = 5.0\nbatch = 5",
    "epsilon = 5.0\nblock = 5\nbudget = 20.0",
    "budget = { total = 20.0, delta = 1e-6, over = 500 }",
    'side_information = 0.5\n[[secret]]\never = ["gym"]\nepsilon = 0.5\nwindow = 20',
)


def commands(end: float) -> dict[str, int]:
    """Commands until the time is over, each case with its number, in a process that is begun anew if it hangs."""
    found, wrong, k = Counter[str](), list[str](), 0
    with tempfile.TemporaryDirectory() as folder:
        while time.monotonic() < end:
            line, other = CONTEXT.Pipe()
            process = CONTEXT.Process(target=work, args=(other, folder), daemon=True)
            process.start()
            line.recv()  # it has loaded
            while time.monotonic() < end:
                line.send(k)
                try:
                    code, said = line.recv() if line.poll(LONG) else ("long", "")
                except EOFError:
                    code, said = "ended", ""
                faults = [name for name, what in (("error", WRONG), ("raw", LEAK)) if what.search(said)]
                faults += [] if code in (0, 1, 2) else [str(code)]
                found.update([f"exit {code}", *faults])
                wrong += [f"case {k}: {', '.join(faults)}"] if faults else []
                k += 1
                if code in ("long", "ended"):
                    break
            process.kill()
    counts = {"commands": k, "wrong": len(wrong), **found}
    print(f"commands, {SECONDS:g} s: " + ", ".join(f"{name} {count:,}" for name, count in sorted(counts.items())))
    print("".join(f"  {each}\n" for each in wrong[:20]), end="", flush=True)
    return counts


def work(line: Connection, folder: str) -> None:
    """Run cases as their numbers come."""
    os.dup2(os.open(os.devnull, os.O_RDWR), 0)
    os.dup2(0, 1)
    base = prepared(Path(folder, "base"))
    line.send("ready")
    while True:
        line.send(attempt(base, Path(folder, "case"), line.recv()))


def prepared(base: Path) -> Path:
    """Good files of every kind, which the cases spoil."""
    if not base.exists():
        base.mkdir()
        dice = random.Random(SEED)
        (base / "data.csv").write_bytes(table(dice, KNOWN, "csv"))
        (base / "alphabet").write_text("\n".join(KNOWN))
        (base / "policy").write_text(POLICIES[0])
        os.chdir(base)
        for line in (
            "fit data.csv -o model --context order:1",
            "release data.csv -m model --policy policy -o released.csv --meta meta --state state --key key",
        ):
            with redirect_stderr(io.StringIO()) as said:
                if main(line.split()):
                    raise RuntimeError(f"seqveil {line} has failed: {said.getvalue()}")
    return base


def attempt(base: Path, folder: Path, k: int, show: bool = False) -> tuple[object, str]:
    """Run a case: its exit code, or what it raised, and all that it said on standard error."""
    shutil.rmtree(folder, ignore_errors=True)
    shutil.copytree(base, folder)
    os.chdir(folder)
    dice = random.Random(f"{SEED} {k}")
    given = arguments(spoilt_files(folder, dice), dice)
    print("seqveil", *given, file=sys.stderr if show else sys.stdout)
    with tempfile.TemporaryFile() as said:
        before = os.dup(2)
        os.dup2(2 if show else said.fileno(), 2)
        try:
            code: object = main(given)
        except BaseException as error:  # no command may raise anything
            code = f"raised {type(error).__name__}"
        sys.stderr.flush()
        os.dup2(before, 2)
        os.close(before)
        said.seek(0)
        text = said.read().decode(errors="replace")
    for typed in filter(LEAK.search, given):  # may be said again
        text = text.replace(typed, "")
    return code, text


def table(dice: random.Random, values: tuple[str, ...], kind: str) -> bytes:
    """A file of this kind with events of some users."""
    import polars as pl

    count, at = dice.choice([1, 30, 200]) if values != KNOWN else 200, io.BytesIO()
    rows: dict[str, list[Any]] = {"user": [f"{USER}{dice.randrange(6)}" for _ in range(count)]}
    if dice.random() < 0.2 and values != KNOWN:
        rows |= {name: [f"{dice.randrange(90)}.8675309" for _ in range(count)] for name in ("lat", "lon")}
    else:
        rows["value"] = [dice.choice(values) for _ in range(count)]
    rows["time"] = [
        f"2024-05-{1 + k // 24:02}T{k % 24:02}:00:00" if dice.random() < 0.99 else RAW for k in range(count)
    ]
    if dice.random() < 0.8 or values == KNOWN:
        rows["time"] = list(range(count))
    frame = pl.DataFrame(rows)
    if kind == "parquet":
        frame.write_parquet(at)
    elif kind == "jsonl":
        frame.write_ndjson(at)
    else:
        frame.write_csv(
            at, separator={"csv": ",", "tsv": "\t", "csv.gz": ";"}[kind], include_header=dice.random() < 0.9
        )
    return gzip.compress(at.getvalue()) if kind == "csv.gz" else at.getvalue()


def spoilt_files(folder: Path, dice: random.Random) -> dict[str, str]:
    """Data of some kind, and one of the files spoilt, in bytes, lines or encoding; the files by what they are."""
    kind = dice.choice(["csv", "csv", "tsv", "jsonl", "parquet", "csv.gz"])
    values = dice.choice([(*KNOWN,) * 9, (*KNOWN, f"{RAW}{dice.randrange(99)}"), (f"{RAW}1", f"{RAW}2", f"{RAW}3")])
    name = f"raw.{kind if dice.random() < 0.9 else dice.choice(['csv', 'jsonl', 'parquet', 'txt'])}"
    (folder / name).write_bytes(table(dice, values, kind))
    (folder / "policy").write_text(dice.choice(POLICIES))
    names = {"data": name, "released": "released.csv"} | {each: each for each in ("model", "policy", "state", "key")}
    names |= {"meta": "meta", "alphabet": "alphabet"}
    spoil = folder / names[dice.choice(["data", "data", "data", *names])]
    content = spoil.read_bytes()
    for _ in range(dice.randrange(4)):
        content = dice.choice([flip, insert, shorten, recoded, lines_moved])(content or b"x", dice)
    spoil.write_bytes(content)
    return names


def recoded(content: bytes, dice: random.Random) -> bytes:
    return content.decode("latin-1").encode(dice.choice(ENCODINGS), errors="replace")


def lines_moved(content: bytes, dice: random.Random) -> bytes:
    """Some lines twice, or none, or cut into two, or in a quote that does not end."""
    lines = content.split(b"\n")
    for _ in range(dice.randrange(1, 4)):
        at = dice.randrange(len(lines))
        cut = dice.randrange(len(lines[at]) + 1)
        lines[at : at + 1] = dice.choice([[], [lines[at]] * 3, [lines[at][:cut], lines[at][cut:]], [b'"' + lines[at]]])
        lines = lines or [b""]
    return b"\n".join(lines)


def arguments(names: dict[str, str], dice: random.Random) -> list[str]:
    """Some command that ends by itself, with what it requires and some of its options, most with values that fit."""
    every = list(leaves(typer.main.get_command(app), []))
    given, command = dice.choice([each for each in every if each[0][0] not in ("studio", "bridge", "spark")])
    given = [*given]
    for parameter in command.params:
        if dice.random() < (0.98 if parameter.required else 0.2):
            value = fitting(parameter, names, dice)
            flag = dice.choice(parameter.opts) if parameter.param_type_name == "option" else None
            given += ([] if flag is None else [flag]) + ([] if getattr(parameter, "is_flag", False) else [value])
    return given


def leaves(command: Any, path: list[str]) -> Any:
    """Each command with the words that call it."""
    if not hasattr(command, "commands"):
        yield path, command
    for name, inner in getattr(command, "commands", {}).items():
        yield from leaves(inner, [*path, name])


def fitting(parameter: Any, names: dict[str, str], dice: random.Random) -> str:
    """A value for a parameter, which now and then does not fit."""
    kind, shown = FILES.get(parameter.name), parameter.metavar or ""
    if dice.random() < 0.08:
        return dice.choice([*ODD, *names.values()])
    if kind is not None:
        return names.get(kind, dice.choice(["out.csv", "out", "out.parquet", "out.jsonl", "-", "no/such/folder"]))
    if parameter.name == "secret":
        return dice.choice(SECRETS)
    if parameter.type.name in ("integer", "float", "int"):
        return dice.choice(NUMBERS)
    if "|" in shown:
        return dice.choice(shown.split("|"))
    return dice.choice((*COLUMNS, f"{USER}1") if shown in ("NAME", "USER") else (*NUMBERS, *ODD))


if __name__ == "__main__":
    with tempfile.TemporaryDirectory() as place:
        print(attempt(prepared(Path(place, "base")), Path(place, "case"), int(sys.argv[1]), show=True))
