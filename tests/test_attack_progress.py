"""An attack says how far it is: forward only, and by the secret at least."""

from seqveil.evaluate.attack_files import _Heard


def test_the_share_never_goes_back_and_stays_below_one():
    told = []
    heard = _Heard(2, told.append)
    for _ in range(2):
        heard.begin()
        for _ in range(8):
            heard.learning()
    assert told == sorted(told)
    assert told[0] == 0.0
    assert 0.9 < told[-1] < 1.0
    assert told[9] == 0.5


def test_nobody_has_to_listen():
    heard = _Heard(1, None)
    assert heard.begin() is None
    assert heard.learning() is None
