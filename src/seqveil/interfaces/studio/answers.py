"""What answers the page: a model's source and a policy in, JSON values out.

*Guarantee*: nothing is written to a disk or a log, and no message holds an event. Of the files that somebody loads the
last one alone stays in memory, beside the streams that the page shows until that one is used.
"""

from __future__ import annotations

import threading
import time
from collections.abc import Mapping
from typing import Any

from seqveil import __version__
from seqveil.core.errors import InputError
from seqveil.engine.policy import Policy
from seqveil.engine.stream import Terms
from seqveil.interfaces.planning import SEEN_BY
from seqveil.interfaces.studio.picture import PictureRun, attacked, offers, picture_of, too_slow
from seqveil.interfaces.studio.source import SAMPLES, StudioSource, sample
from seqveil.interfaces.studio.upload import Upload, UploadChoice, loaded

SLICE = 0.4  # seconds of the processor after which a picture of what there is beats a longer wait


class Studio:
    """Answers of one page. Requests are answered one at a time, each within a moment: a picture that takes longer is
    handed out as far as it has come, and goes on when it is asked for again.

    `own` is a file, and `chosen` the columns of it, that is there beside the samples.
    """

    def __init__(self, own: Upload | None = None, chosen: UploadChoice | None = None) -> None:
        self._chosen = chosen or UploadChoice()
        self._lock = threading.Lock()
        self._run: tuple[Any, PictureRun] | None = None  # the picture that was asked for last
        self._file = own  # the one that came last
        self._loaded: StudioSource | None = None  # what one became, when its columns were chosen
        self._files = 1  # so far, for its name

    def begin(self) -> dict[str, Any]:
        """What there is to look at; `upload` is the command's file, whose columns are to be chosen first."""
        return {
            "seqveil": __version__,
            "sources": [{"name": name, "title": each.title} for name, each in SAMPLES.items()],
            "upload": self._looked(self._name, self._chosen) if self._file and self._files == 1 else None,
            "seen_by": {name: limit for name, (_, limit) in SEEN_BY.items()},
        }

    def upload(self, content: bytes, file: str) -> dict[str, Any]:
        """Take a file in, and say what `seqveil inspect` says about it."""
        found = Upload.of(content, file)
        with self._lock:
            self._file, self._files = found, self._files + 1
            return self._looked(self._name, UploadChoice())

    def look(self, upload: str, columns: Mapping[str, Any]) -> dict[str, Any]:
        """The same with other columns."""
        return self._looked(upload, UploadChoice(**columns))

    def load(self, upload: str, columns: Mapping[str, Any]) -> dict[str, Any]:
        """Fit a model to a file; returns the source that it makes."""
        made = loaded(self._upload(upload), UploadChoice(**columns), upload)
        with self._lock:
            self._upload(upload)  # unless another one was loaded meanwhile
            self._loaded, self._run = made, None
        return made.describe()

    def source(self, source: str) -> dict[str, Any]:
        """A source in words, with what the page proposes for it."""
        return self._find(source).describe()

    def show(self, source: str, policy: Any, person: int | None, events: int, seed: int) -> dict[str, Any]:
        """A picture, or as much of it as there was time for; ask again for the rest.

        Of nobody in particular it is that of somebody who has the secret.
        """
        begun = time.thread_time()
        found = self._find(source)
        terms, events = _terms(policy, found), min(events, found.most)
        if person is None:
            person = found.somebody_with(terms.secrets[0], events) if terms.secrets else 0
        key = (found, terms.signature, person, events, seed)
        with self._lock:
            if self._run is None or self._run[0] != key:
                self._run = (key, PictureRun(terms, found.streams[person][:events], seed))
            run = self._run[1]
            run.go(max(SLICE / 4, SLICE - (time.thread_time() - begun)))
            return picture_of(found, run) | {"person": person}

    def offers(self, source: str, policy: Mapping[str, Any]) -> dict[str, Any]:
        """Every mechanism, and why it does not fit where it does not, whichever the policy names."""
        chosen = {name: value for name, value in policy.items() if name != "mechanism"}
        return {"mechanisms": offers(self._find(source), _policy(chosen))}

    def attack(self, source: str, policy: Any, seed: int) -> dict[str, Any]:
        """What an attacker finds out about people whom the model was not fitted to."""
        found = self._find(source)
        return attacked(found, _terms(policy, found), seed)

    @property
    def _name(self) -> str:
        """What the file is called that was loaded last."""
        return f"own-{self._files}"

    def _upload(self, name: str) -> Upload:
        if self._file is None or name != self._name:
            raise InputError("the file is not in memory any more; load it again")
        return self._file

    def _looked(self, name: str, chosen: UploadChoice) -> dict[str, Any]:
        return self._upload(name).describe(chosen) | {"upload": name}

    def _find(self, name: str) -> StudioSource:
        with self._lock:
            if name in SAMPLES:
                return sample(name)
            if self._loaded is not None and name == self._loaded.name:
                return self._loaded
            self._upload(name)
        raise InputError("source: its columns are still to be chosen; use them first")


def _policy(given: Mapping[str, Any]) -> Policy:
    """A policy as its file has it; no file is read for one, so models of observers are refused."""
    if "observers" in given:
        raise InputError("policy: expected the lines of a policy, without observers; check the request")
    try:
        return Policy.from_dict(given)
    except InputError as error:  # which may quote a line of the policy that is several
        raise InputError(" ".join(str(error).split())) from None


def _terms(given: Any, source: StudioSource) -> Terms:
    """What a policy means for a source; what needs the time of every event is for the commands."""
    made = _policy(given).on(source.model)
    if made.timed:
        raise InputError("the page shows events without their times; leave seconds, days and hours out")
    why = too_slow(made.mechanism.name, source.model.n, made.policy)
    if why:
        raise InputError(f"{made.mechanism.name}: {why}; choose another mechanism")
    return made
