"""The page over HTTP: who gets answers and what a refusal says."""

import signal
import threading

import pytest

from seqveil.interfaces.studio.sandbox import Sandbox
from served import ask
from studios import KEY, Process, parsed, studio

TEXT = "user,value,other\nann,3,a\nann,4,b\nbob,3,c\nann,4,d\nbob,9,e\n"


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
            answer = page.ask("GET", f"/page/{name}", token=None)
            assert answer.status == 200
            assert page.ask("GET", f"/page/{name}", headers={"If-None-Match": answer.headers["ETag"]}).status == 304
        for path in ("/page/app.py", "/page/..%2Fapp.py", "/page/%2e%2e/app.py", "/page/", "/openapi.json", "/docs"):
            assert page.ask("GET", path).status == 404, path
        assert parsed(page.show(source="clicks", events=5, epsilon=1.0))["done"] >= 1
        for token in (None, "", "wrong", KEY + "x", KEY[:-1]):
            assert page.ask("GET", "/v1/page/begin", token=token).status == 401
            assert page.ask("POST", "/v1/page/show", {"source": "clicks"}, token=token).status == 401
        for host in ("evil.example", "10.0.0.1", f"evil.example:{page.port}", ""):
            assert page.ask("GET", "/v1/page/begin", headers={"Host": host}).status == 403
        form = {"Content-Type": "text/plain"}
        assert page.ask("POST", "/v1/page/show", {"source": "clicks"}, headers=form).status == 415
        for body in (b"", b"{", b"[" * 60_000, b"\xff", b"[]", b"7"):
            assert page.ask("POST", "/v1/page/show", body).status == 400
        assert page.show(source="own-nothing", epsilon=1.0).status == 404
        assert page.ask("GET", "/v1/page/show").status == 405


def test_pages_have_no_script_or_style_inside_and_nothing_from_elsewhere():
    from seqveil.interfaces.studio.serving import assets

    for name, asset in assets().items():
        text = asset.content.decode()
        if name.endswith(".html"):
            assert "<style" not in text
            assert " style=" not in text
            assert " on" not in [part[:3] for part in text.split("<script")[1:]]
            assert all("src=" in part for part in text.split("<script")[1:])
        elsewhere = [part for part in text.split("//") if part.startswith(("www.", "cdn", "unpkg", "fonts"))]
        assert [part for part in elsewhere if not part.startswith("www.w3.org")] == [], name
        for stored in ("localStorage", "sessionStorage", "document.cookie", "innerHTML", "eval("):
            assert stored not in text, name


def test_too_much_data_is_refused(monkeypatch):
    monkeypatch.setattr("seqveil.interfaces.studio.serving.MOST_BYTES", 10_000)
    with studio() as page:
        answer = page.ask("POST", "/v1/page/load", {"csv": "user,value\n" + "a,secret-77\n" * 2000})
        assert answer.status == 413
        assert b"secret-77" not in answer.content


def test_what_nobody_foresaw_tells_nothing(monkeypatch, capfd):
    def fail(given):
        raise ValueError("secret-77")

    sandbox = Sandbox()
    monkeypatch.setattr(sandbox, "show", fail)
    with studio(sandbox=sandbox) as page:
        answer = page.show(source="clicks")
        assert answer.status == 500
        assert b"secret-77" not in answer.content
        assert b"ValueError" in answer.content
    said = capfd.readouterr()
    assert "secret-77" not in said.out + said.err


@pytest.mark.slow
def test_many_at_once_take_turns_and_get_the_same():
    with studio() as page:
        found, barrier = [], threading.Barrier(8)

        def work(seed):
            barrier.wait()
            for _ in range(20):
                answer = parsed(page.show(source="clicks", events=150, epsilon=1.0, seed=seed))
                if answer["complete"]:
                    found.append((seed, answer["figures"]["leakage"]))
                    return

        threads = [threading.Thread(target=work, args=(k % 2,)) for k in range(8)]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join()
        assert len(found) == 8
        assert len(set(found)) == 2


@pytest.mark.slow
def test_the_command_prints_its_address_and_ends_on_a_signal(tmp_path):
    (tmp_path / "d.csv").write_text(TEXT)
    for how in (signal.SIGINT, signal.SIGTERM):
        process = Process("d.csv", folder=tmp_path)
        found = parsed(ask(int(process.port), "GET", "/v1/page/begin", token=process.key))
        assert found["first"] == "data"
        shown = ask(
            int(process.port), "POST", "/v1/page/show", {"source": "data", "events": 3, "epsilon": 1.0}, process.key
        )
        assert parsed(shown)["events"] == 3
        code, said = process.end(how)
        assert (code, said) == (0, "")
    assert sorted(path.name for path in tmp_path.iterdir()) == ["d.csv"]
    with pytest.raises(RuntimeError, match="no such file"):
        Process("none.csv", folder=tmp_path)
