"""The settings of a benchmark and the sizes that fill the gaps."""

from __future__ import annotations

from dataclasses import dataclass, replace
from pathlib import Path

from tokmix.cli.commands.bench import COMPILED, DTYPES, READ, check_read
from tokmix.core.checks import at_least, one_of

GPU_LENGTHS = (128, 512, 2048, 8192, 32_768, 65_536)
CPU_LENGTHS = (128, 512, 2048, 4096)
SIZES = ("lengths", "tokens", "dim", "head", "dtype", "compiled")


@dataclass(frozen=True)
class BenchSettings:
    """quick     tiny sizes, to check that it runs
    lengths   tokens of a sequence; of the context, for decode
    tokens    of a call, at every length
    dim       width; head: channels of a head
    compiled  torch.compile of the references: none, at one length, at all
    only      parts of names; other rows are left out
    minutes   start nothing new after this time; user: time for all trainings
    data      a table with the columns text and label; encoder: what fine-tuning starts from
    """

    what: str
    quick: bool = False
    lengths: tuple[int, ...] = ()
    tokens: int = 0
    dim: int = 0
    head: int = 0
    device: str | None = None
    dtype: str | None = None
    threads: int | None = None
    compiled: str | None = None
    only: tuple[str, ...] = ()
    minutes: float | None = None
    out: Path | None = None
    data: Path | None = None
    encoder: str | None = None

    def sized(self, device: str) -> BenchSettings:
        """The settings with every gap filled for this kind of device."""
        one_of("benchmark", self.what, READ)
        check_read(self.what, [name for name in SIZES if getattr(self, name)])
        counts = {"tokens": self.tokens or None, "dim": self.dim or None, "head": self.head or None, "threads": self.threads}
        for name, given in [*(("lengths", length) for length in self.lengths), *counts.items()]:
            if given is not None:
                at_least(name, given, 1)
        if self.minutes is not None and not self.minutes > 0:
            raise ValueError(f"minutes={self.minutes} should be above 0")
        if self.dtype is not None:
            one_of("dtype", self.dtype, DTYPES)
        if self.compiled is not None:
            one_of("compiled", self.compiled, COMPILED)
        gpu = device == "cuda"
        dim = self.dim or self._dim(gpu)
        return replace(
            self,
            device=device,
            lengths=tuple(sorted(set(self.lengths))) or self._lengths(gpu),
            tokens=self.tokens or self._tokens(gpu),
            dim=dim,
            head=self.head or (64 if dim % 64 == 0 else dim // 2 if dim % 2 == 0 else dim),
            dtype=self.dtype or ("bfloat16" if gpu else "float32"),
            compiled=self.compiled or ("one" if gpu and not self.quick else "none"),
        )

    @property
    def unread(self) -> list[str]:
        """Sizes that this benchmark does not use."""
        return [name for name in SIZES if name not in READ[self.what]]

    def _lengths(self, gpu: bool) -> tuple[int, ...]:
        if self.quick:
            return (512, 2048) if gpu else (16, 32)
        if self.what == "train":
            return (512, 2048, 8192) if gpu else (128, 512)
        if self.what == "decode":
            return (1024, 4096, 16_384, 65_536) if gpu else (1024, 4096)
        return GPU_LENGTHS if gpu else CPU_LENGTHS

    def _tokens(self, gpu: bool) -> int:
        if self.quick:
            return 8192 if gpu else 64
        return 65_536 if gpu else 4096

    def _dim(self, gpu: bool) -> int:
        if self.quick and not gpu:
            return 32
        if self.what == "decode":
            return 1024 if gpu else 256
        return 512
