"""What a service takes at its start: flags first, then SEQVEIL_SERVE_* of the environment, then a TOML file."""

from __future__ import annotations

import os
from collections.abc import Mapping
from pathlib import Path
from typing import Any, Literal

from pydantic import Field, ValidationError
from pydantic_settings import BaseSettings, InitSettingsSource, PydanticBaseSettingsSource, SettingsConfigDict

from seqveil.core.errors import InputError
from seqveil.engine import toml
from seqveil.interfaces.client import is_loopback

PREFIX = "SEQVEIL_SERVE_"


class ServeConfig(BaseSettings):
    """Every option of `seqveil serve`.

    >>> ServeConfig(port=9000).port, ServeConfig().loopback
    (9000, True)
    """

    model_config = SettingsConfigDict(env_prefix=PREFIX, extra="forbid", frozen=True)

    model: Path | None = None
    policy: Path | None = None
    state: Path | None = None
    key: Path | None = None
    begin: bool = False
    on_unknown: Literal["error", "hide", "nearest"] | None = None
    gaps: Literal["refuse", "skip"] = "refuse"

    host: str = "127.0.0.1"
    port: int = Field(8713, ge=0, le=65535)
    tls_cert: Path | None = None
    tls_key: Path | None = None
    insecure: bool = False
    tokens: Path | None = None
    no_auth: bool = False

    backups: Path | None = Field(None, description="the folder of copies that POST /v1/backup makes")

    max_body: int = Field(4 << 20, ge=1024, description="bytes of one request")
    max_events: int = Field(10_000, ge=1, description="events of one request")
    max_waiting: int = Field(100_000, ge=1, description="events accepted and not yet on the disk")
    max_connections: int = Field(1000, ge=1, description="connections at a time, those without a request too")
    max_per_address: int = Field(500, ge=1, description="connections from one address at a time")
    rate: float = Field(100_000.0, gt=0, allow_inf_nan=False, description="events a second of one token")
    timeout: float = Field(10.0, gt=0, allow_inf_nan=False, description="seconds for one request")
    grace: float = Field(30.0, gt=0, allow_inf_nan=False, description="seconds for what was accepted, at the end")
    group: int = Field(1000, ge=1, description="events a transaction is filled up to")
    linger: float = Field(0.0005, ge=0, le=1, description="seconds it waits for more of them")
    min_free: int = Field(64 << 20, ge=0, description="bytes free on the disk, below which /readyz fails")
    metrics_refresh: float = Field(60.0, ge=0, description="seconds for which figures over all users stand")
    log_level: Literal["debug", "info", "warning", "error"] = "info"
    log_users: bool = False

    @property
    def loopback(self) -> bool:
        """Whether only this machine can reach the service."""
        return is_loopback(self.host)

    @property
    def tls(self) -> bool:
        """Whether the service speaks HTTPS itself."""
        return self.tls_cert is not None and self.tls_key is not None

    def check(self) -> None:
        """Refuse to serve in a way that lets strangers in or raw symbols out."""
        if (self.tls_cert is None) != (self.tls_key is None):
            raise InputError("TLS needs both --tls-cert and --tls-key")
        if self.tokens is not None and self.no_auth:
            raise InputError("pass --tokens or --no-auth, not both")
        if self.tokens is None and not self.no_auth:
            raise InputError(
                "without tokens anyone could release for anyone; make some with `seqveil serve token add FILE` and "
                "pass --tokens FILE, or --no-auth on a loopback address"
            )
        if self.no_auth and not self.loopback:
            raise InputError("--no-auth is for a loopback address alone; pass --tokens FILE")
        if not self.loopback and not self.tls and not self.insecure:
            raise InputError(
                "raw symbols would cross the network unprotected; pass --tls-cert and --tls-key, or --insecure where "
                "something in front of the service does TLS"
            )


def load(flags: Mapping[str, Any], file: str | os.PathLike[str] | None = None) -> ServeConfig:
    """The configuration: what the flags leave out comes from the environment, and then from the file."""

    written = {} if file is None else _written(Path(file))

    class Sources(ServeConfig):
        @classmethod
        def settings_customise_sources(
            cls,
            settings_cls: type[BaseSettings],
            init_settings: PydanticBaseSettingsSource,
            env_settings: PydanticBaseSettingsSource,
            dotenv_settings: PydanticBaseSettingsSource,
            file_secret_settings: PydanticBaseSettingsSource,
        ) -> tuple[PydanticBaseSettingsSource, ...]:
            return (init_settings, env_settings, InitSettingsSource(settings_cls, written))

    known = {PREFIX + name.upper() for name in ServeConfig.model_fields}
    strange = sorted(name for name in os.environ if name.upper().startswith(PREFIX) and name.upper() not in known)
    if strange:
        raise InputError(f"the environment sets {', '.join(strange)}, which is no option of serve; see serve --help")
    try:
        return Sources(**{name: value for name, value in flags.items() if value is not None})
    except ValidationError as error:
        first = error.errors()[0]
        name = ".".join(map(str, first["loc"])) or "configuration"
        raise InputError(f"option {name}: {first['msg'].lower()}; see serve --help") from None


def _written(file: Path) -> dict[str, Any]:
    """What the configuration file says, with _ or - between words; a line that is no option is refused."""
    found = {name.replace("-", "_"): value for name, value in toml.read(file, "configuration").items()}
    strange = sorted(name for name in found if name not in ServeConfig.model_fields)
    if strange:
        raise InputError(f"{file.name}: {strange[0][:40]!r} is no option of serve; take it out (see serve --help)")
    return found
