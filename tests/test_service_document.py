"""The interface of the service as its own OpenAPI document tells it."""

import pytest
from hypothesis import HealthCheck, given, settings

from served import running, words_setting

PLAIN = ("/healthz", "/livez", "/readyz", "/metrics")


@pytest.fixture
def service(tmp_path):
    with running(tmp_path, words_setting(), max_body=200_000, max_events=300) as found:
        yield found


@pytest.fixture
def tester():
    """What makes requests from the document: loaded before a server's thread runs, and only where it is used.

    Python 3.11 may fail to read source while another thread does.
    """
    import schemathesis.specs.openapi.schemas

    return schemathesis


@pytest.mark.slow
@pytest.mark.parametrize("mode", ["positive", "negative"])
def test_every_answer_is_as_documented(tester, service, mode):
    from schemathesis.specs.openapi.checks import positive_data_acceptance

    wrong = mode == "negative"
    document = tester.openapi.from_url(f"{service.url}/openapi.json")
    operations = [found.ok() for found in document.get_all_operations()]
    assert len(operations) == 11
    for operation in operations:
        if wrong and operation.path in PLAIN:
            continue  # nothing about them can be wrong

        @settings(max_examples=20, deadline=None, derandomize=True, suppress_health_check=list(HealthCheck))
        @given(case=operation.as_strategy(generation_mode=tester.GenerationMode(mode)))
        def check(case):
            headers = {"Authorization": f"Bearer {service.secret}"}
            # the schema cannot tell which values are in the alphabet
            case.call_and_validate(headers=headers, timeout=20, excluded_checks=[positive_data_acceptance])

        check()


def test_the_document_has_examples_scopes_and_refusals(service):
    document = service.ask("GET", "/openapi.json", token=None).json
    release = document["paths"]["/v1/release"]["post"]
    assert release["security"] == [{"token": ["release"]}]
    examples = release["requestBody"]["content"]["application/json"]["examples"]
    assert service.ask("POST", "/v1/release", examples["one"]["value"]).status == 200
    assert service.ask("POST", "/v1/release", examples["many"]["value"]).status == 200
    for status in ("400", "401", "403", "409", "413", "415", "429", "503"):
        assert list(release["responses"][status]["content"]) == ["application/problem+json"]
