"""What the router is told: its backends and its limits, as JSON."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated, Any, Literal
from urllib.parse import urlsplit

from pydantic import BaseModel, ConfigDict, Field, ValidationError, field_validator, model_validator

from coralopt.errors import LaunchError
from coralopt.routing import ROUTINGS, Routing
from coralopt.runtime.launch import Launch, PipelineLaunch


class _Part(BaseModel):
    model_config = ConfigDict(extra="forbid", frozen=True)


class BackendConfig(_Part):
    """One server behind the router: the head of one pipeline."""

    name: str = Field(min_length=1, description="Unique.")
    model: str = Field(min_length=1, description="Model name that requests use, or one of `variants`.")
    phase: Literal["prefill", "decode", "mixed"]
    url: str = Field(description="Base URL of its OpenAI API.")
    weight: float = Field(gt=0, allow_inf_nan=False, description="T(tau), tokens/s.")
    max_in_flight: int = Field(ge=1, description="Requests it is handed at once; others queue in the router.")
    connector: str | None = Field(default=None, description="How KV caches move; null for mixed serving.")
    kv_url: str | None = Field(default=None, description="Where a Mooncake prefill server says who it is.")
    region: str | None = Field(default=None, description="Where it stands; null where that does not matter.")
    decode_regions: tuple[str, ...] | None = Field(
        default=None, description="Regions that its KV caches may go to; null for any."
    )
    health_path: str = "/health"
    classes: dict[str, Annotated[float, Field(gt=0, allow_inf_nan=False)]] = Field(
        default={}, description="Class of requests -> tokens/s planned of it; empty where it takes requests of any."
    )

    def reaches(self, decode: BackendConfig) -> bool:
        """Whether a KV cache may go from here to a decode server."""
        return self.decode_regions is None or decode.region is None or decode.region in self.decode_regions

    @field_validator("url", "kv_url")
    @classmethod
    def _http(cls, value: str | None) -> str | None:
        if value is None:
            return None
        parts = urlsplit(value)
        if parts.scheme not in {"http", "https"} or not parts.hostname:
            raise ValueError("must be an http or https URL with a host")
        return value.rstrip("/")


class ClientConfig(_Part):
    """One key's owner and its limits."""

    name: str = Field(min_length=1, description="As the access log says it.")
    key_sha256: str = Field(pattern="^[0-9a-f]{64}$", description="SHA-256 of the key; the key itself is in no file.")
    requests_per_minute: float | None = Field(default=None, gt=0, description="Also the largest burst.")
    tokens_per_minute: float | None = Field(default=None, gt=0, description="Input and output; counted once answered.")


class ClassConfig(_Part):
    """A class of requests, told by what a request says: of several that hold it the first one has it."""

    name: str = Field(min_length=1)
    most_input: float | None = Field(default=None, gt=0, description="Longest prompt, tokens; null for any.")
    most_output: float | None = Field(default=None, gt=0, description="Most tokens that are asked for; null for any.")


class RouterConfig(_Part):
    """The whole router. Times are in seconds."""

    format: Literal["coralopt-router"] = "coralopt-router"
    version: Literal[1] = 1
    backends: tuple[BackendConfig, ...] = ()
    routing: Routing = Field(default="weighted-round-robin", description="How an instance is chosen.")
    affinity: Literal["none", "session", "prefix"] = Field(
        default="none",
        description="Which requests go to the same instance while its load allows: of one session, or with one beginning.",
    )
    session_header: str = Field(
        default="X-Session-Id", description="Names a session; without it the body's `user` does."
    )
    prefix_characters: int = Field(default=1024, ge=1, description="How much of a prompt is its beginning.")
    mixed_share: dict[str, Annotated[float, Field(ge=0, le=1)]] = Field(
        default={},
        description="Model with disaggregated and mixed instances -> share of its requests for the mixed ones.",
    )
    variants: dict[str, dict[str, Annotated[float, Field(ge=0, le=1)]]] = Field(
        default={}, description="Model name that requests use -> model of backends -> share of the requests for these."
    )
    classes: dict[str, tuple[ClassConfig, ...]] = Field(
        default={}, description="Model name that requests use -> its classes of requests; the last one takes the rest."
    )
    aliases: dict[str, str] = Field(default={}, description="Other names of models, as clients may say them.")
    adapters: dict[str, str] = Field(
        default={}, description="LoRA adapter that requests name -> model name whose backends hold it."
    )
    clients: tuple[ClientConfig, ...] = Field(default=(), description="Keys with limits, beside CORALOPT_API_KEY.")
    admin_hosts: tuple[str, ...] = Field(
        default=(), description="Names with a dot under which the admin endpoints may be called."
    )
    head_timeout_s: float = Field(default=15.0, gt=0, description="Longest time for the head of a client's request.")
    body_timeout_s: float = Field(default=60.0, gt=0, description="Longest time for its body.")
    largest_body: int = Field(default=32 * 2**20, ge=1024, description="Bytes of a request's body; more get a 413.")
    queue_size: int = Field(default=256, ge=0, description="Requests that may wait for a model; more get a 429.")
    queue_timeout_s: float = Field(default=30.0, gt=0, description="Longest wait in the queue; then a 503.")
    retries: int = Field(default=2, ge=0, description="Other instances tried when one fails before its first token.")
    health_interval_s: float = Field(default=2.0, gt=0)
    health_timeout_s: float = Field(default=5.0, gt=0)
    unhealthy_after: int = Field(default=3, ge=1, description="Health checks, or requests, in a row that must fail.")
    connect_timeout_s: float = Field(default=5.0, gt=0)
    first_token_timeout_s: float = Field(default=300.0, gt=0, description="Longest wait for a stream's first byte.")
    kv_wait_s: float = Field(
        default=20.0, gt=0, description="Longest wait between prefill and decode; longer, and prefill is done again."
    )
    answer_timeout_s: float = Field(
        default=3600.0, gt=0, description="Longest wait for an answer that is not streamed."
    )
    idle_timeout_s: float = Field(default=120.0, gt=0, description="Longest pause inside an answer.")

    @model_validator(mode="after")
    def _sound(self) -> RouterConfig:
        names = [backend.name for backend in self.backends]
        twice = sorted({name for name in names if names.count(name) > 1})
        if twice:
            raise ValueError(f"two backends are called {twice[0]!r}")
        return self

    def part(self, number: int, of: int) -> RouterConfig:
        """What the process ``number`` (from 0) ``of`` several has: its part of each backend's slots and of the queue."""

        def some(count: int) -> int:
            return (count + number) // of

        backends = [b.model_copy(update={"max_in_flight": max(1, some(b.max_in_flight))}) for b in self.backends]
        return self.model_copy(update={"backends": tuple(backends), "queue_size": some(self.queue_size)})

    @staticmethod
    def load(path: str | Path) -> RouterConfig:
        """Read a configuration.

        Raises:
            LaunchError: No such file or not a router configuration; names every field that is off.
        """
        try:
            return RouterConfig.model_validate_json(Path(path).read_text(encoding="utf-8"))
        except (OSError, UnicodeDecodeError) as error:
            raise LaunchError(f"{path}: cannot be read: {getattr(error, 'strerror', None) or 'not UTF-8'}") from error
        except ValidationError as error:
            lines = [
                f"  - {'.'.join(map(str, item['loc'])) or 'the document'}: {item['msg']}"
                for item in error.errors()[:20]
            ]
            raise LaunchError("\n".join([f"{path}: not a router configuration:", *lines])) from error


def backend_config(pipeline: PipelineLaunch) -> BackendConfig:
    """The backend that a started pipeline is."""
    return BackendConfig(**_backend(pipeline))


def _backend(pipeline: PipelineLaunch) -> dict[str, Any]:  # Any: each field has its own type, checked by BackendConfig
    names = ("name", "model", "phase", "url", "tokens_s", "max_in_flight", "connector", "health_path", "kv_url")
    fields = {"weight" if name == "tokens_s" else name: getattr(pipeline, name) for name in names}
    if pipeline.classes:
        fields["classes"] = dict(pipeline.classes)
    if pipeline.decode_regions is not None:
        fields |= {"region": pipeline.region, "decode_regions": pipeline.decode_regions}
    return {name: value for name, value in fields.items() if name != "kv_url" or value is not None}


def class_configs(launch: Launch) -> dict[str, list[dict[str, Any]]]:  # Any: as above
    """``classes`` of the router's configuration."""
    names = ("name", "most_input", "most_output")
    return {
        of: [{name: getattr(part, name) for name in names} for part in parts] for of, parts in launch.classes.items()
    }


def router_document(launch: Launch) -> dict[str, Any]:  # Any: as above
    """``router.json``. Host names that a target's own variables complete are written as they are."""
    backends = [_backend(pipeline) for pipeline in launch.pipelines]
    routing = {} if launch.routing == ROUTINGS[0] else {"routing": launch.routing}
    splits = {"mixed_share": dict(launch.mixed_share), "variants": {m: dict(s) for m, s in launch.variants.items()}}
    split: dict[str, Any] = {name: shares for name, shares in splits.items() if shares}  # Any: as above
    if launch.classes:
        split["classes"] = class_configs(launch)
    if launch.adapters:
        split["adapters"] = dict(launch.adapters)
    if launch.prefix_hits:
        split["affinity"] = "prefix"
    return {"format": "coralopt-router", "version": 1, **routing, **split, "backends": backends}
