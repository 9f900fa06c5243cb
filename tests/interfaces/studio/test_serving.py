"""The page over HTTP: who gets answers and what a refusal says."""

import signal
from concurrent.futures import ThreadPoolExecutor

import pytest

from seqveil.interfaces.studio.answers import Studio
from seqveil.interfaces.studio.serving import PAGE
from studios import KEY, Process, parsed, studio

TEXT = "user,value,other\nann,3,a\nann,4,b\nbob,3,c\nann,4,d\nbob,9,e\n"
BYTES = {"Content-Type": "application/octet-stream"}


@pytest.mark.slow
def test_the_page_answers_to_its_key_and_this_machine_alone():
    with studio() as page:
        front = page.ask("GET", "/", token=None)
        assert front.status == 200
        assert "text/html" in front.headers["Content-Type"]
        policy = front.headers["Content-Security-Policy"]
        assert "default-src 'none'" in policy
        assert "unsafe" not in policy
        for name in ("main.js", "style.css", "icon.svg"):
            assert page.ask("GET", f"/{name}", token=None).status == 200
        for path in ("/app.py", "/..%2Fserving.py", "/%2e%2e/serving.py", "/../serving.py", "/page/", "/v1/page/show"):
            assert page.ask("GET", path).status == 404, path
        assert parsed(page.show(events=5))["done"] >= 1
        for token in (None, "", "wrong", KEY + "x", KEY[:-1]):
            assert page.ask("POST", "/v1/page/begin", b"null", token=token).status == 401
        for host in ("evil.example", "10.0.0.1", f"evil.example:{page.port}", "", "[", "localhost.evil.example"):
            assert page.ask("POST", "/v1/page/begin", b"null", headers={"Host": host}).status == 403, host
        assert page.ask("POST", "/v1/page/show", {}, headers={"Content-Type": "text/plain"}).status == 415
        for body in (b"", b"{", b"[" * 60_000, b"\xff", b"[]", b"7"):
            assert page.ask("POST", "/v1/page/show", body).status == 400
        assert page.show(source="own-nothing").status == 400
        for name in ("nothing", "_keep", "__init__", "upload"):
            assert page.ask("POST", f"/v1/page/{name}", b"null").status == 404, name
        assert page.ask("POST", "/v1/page/begin", headers={"Content-Length": "x"}).status == 400
        assert page.ask(
            "POST", "/v1/page/begin", headers={"Transfer-Encoding": "chunked"}, body=b"0\r\n\r\n"
        ).status in (400, 413)


def test_pages_have_no_script_or_style_inside_and_nothing_from_elsewhere():
    for file in PAGE.iterdir():
        text = file.read_text(encoding="utf-8")
        if file.suffix == ".html":
            assert "<style" not in text
            assert " style=" not in text
            assert all("src=" in part for part in text.split("<script")[1:])
        elsewhere = [part for part in text.split("//") if part.startswith(("www.", "cdn", "unpkg", "fonts"))]
        assert [part for part in elsewhere if not part.startswith("www.w3.org")] == [], file.name
        for stored in ("localStorage", "sessionStorage", "document.cookie", "innerHTML", "eval("):
            assert stored not in text, file.name


def test_too_much_data_is_refused_and_bad_data_named_by_its_row(monkeypatch):
    with studio() as page:
        answer = page.ask("POST", "/v1/page/upload?file=d.csv", b"user,value\na,secret-77\na\n", headers=BYTES)
        assert (answer.status, b"row 2" in answer.content, b"secret-77" in answer.content) == (400, True, False)
        monkeypatch.setattr("seqveil.interfaces.studio.serving.MOST_BYTES", 10_000)
        answer = page.ask(
            "POST", "/v1/page/upload?file=d.csv", b"user,value\n" + b"a,secret-77\n" * 2000, headers=BYTES
        )
        assert (answer.status, b"secret-77" in answer.content) == (413, False)


def test_what_nobody_foresaw_tells_nothing(monkeypatch, capfd):
    def fail(**asked):
        raise ValueError("secret-77")

    answers = Studio()
    monkeypatch.setattr(answers, "show", fail)
    with studio(answers=answers) as page:
        answer = page.show()
        assert answer.status == 500
        assert b"secret-77" not in answer.content
        assert b"ValueError" in answer.content
    said = capfd.readouterr()
    assert "secret-77" not in said.out + said.err


def finished(page, seed):
    while not (answer := parsed(page.show(events=100, seed=seed)))["complete"]:
        pass
    return answer["figures"]["leakage"]


@pytest.mark.slow
def test_many_at_once_get_the_same():
    with studio() as page:
        asking = [k % 2 for k in range(8)]
        with ThreadPoolExecutor(8) as threads:
            found = list(threads.map(lambda seed: finished(page, seed), asking))
    assert len(set(zip(asking, found, strict=True))) == 2


@pytest.mark.slow
def test_the_command_prints_its_address_and_ends_on_a_signal(tmp_path):
    (tmp_path / "d.csv").write_text(TEXT)
    for how in (signal.SIGINT, signal.SIGTERM):
        process = Process("d.csv", "--user-column", "user", folder=tmp_path)
        found = process.ask("begin")["upload"]
        assert (found["chosen"]["value"], found["problem"]) == ("value", "")
        made = process.ask("load", upload=found["upload"], columns=found["chosen"])
        assert made["length"] == 3
        code, said = process.end(how)
        assert (code, said) == (0, "")
    assert sorted(path.name for path in tmp_path.iterdir()) == ["d.csv"]
    with pytest.raises(RuntimeError, match="No such file or directory: none"):
        Process("none.csv", folder=tmp_path)
