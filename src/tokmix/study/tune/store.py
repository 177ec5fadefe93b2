"""Where the trials of a study are kept: Optuna's journal file in the folder, or PostgreSQL for many machines."""

from __future__ import annotations

import re
import warnings
from collections.abc import Iterator
from contextlib import contextmanager, nullcontext
from dataclasses import dataclass
from pathlib import Path
from types import ModuleType
from typing import Any
from urllib.parse import unquote, urlsplit

from tokmix.runs.files import Damaged
from tokmix.runs.locks import JournalLock, holding

JOURNAL = "journal.log"
KEY = int.from_bytes(b"tokmix", "big")  # of the lock in PostgreSQL: one for all studies of a database, as they share its tables
CONNECT = {"client_encoding": "utf8", "connect_timeout": 15}  # utf8: a server with the C locale would answer in bytes
SCHEMES = ("postgresql", "postgres", "postgresql+psycopg")
# ?password=... and user:password@, wherever they stand in a word; up to the last @, as too much hidden is better than too little.
SECRETS = re.compile(r"([?&](?:ssl)?password=)([^&]*)", re.IGNORECASE), re.compile(r"(://[^:/@]*:)(.*)(?=@)")
STRAY = re.compile(r"://[^?]*[@/][^?]*@")  # an @ or / in a user or password, which the database would read as its end


class Unreachable(ValueError):
    """The database does not answer, or refuses."""


def optuna() -> ModuleType:
    try:
        import optuna
    except ImportError as error:
        raise ImportError("tune needs the package optuna: pip install 'tokmix[tune]'") from error
    optuna.logging.set_verbosity(optuna.logging.WARNING)
    return optuna


def _psycopg() -> ModuleType:
    try:
        import psycopg
    except ImportError as error:
        raise ImportError("--storage postgresql://... needs the package psycopg: pip install 'tokmix[tune]'") from error
    return psycopg


@dataclass(frozen=True)
class Store:
    out: Path
    name: str  # of the study; the folder's own, so that the same command finds it on any machine
    url: str | None = None  # None: a journal file in `out`
    patience: int = 60  # PostgreSQL: a worker without a heartbeat for this many seconds counts as dead

    def __post_init__(self) -> None:
        if self.url is not None and urlsplit(self.url).scheme not in SCHEMES:
            raise ValueError(
                f"--storage {hide_password(self.url)!r} is not postgresql://...: trials are kept there, or without --storage in a journal"
                " file (SQLite gives one trial to two workers)"
            )
        if self.url is not None and STRAY.search(self.url):
            raise ValueError(f"--storage {hide_password(self.url)}: an @ in a user or password is written %40, and a / %2F")
        if self.patience < 3:
            raise ValueError(f"--patience {self.patience} is not a whole number of at least 3 seconds")

    @property
    def shared(self) -> bool:
        return self.url is not None

    @property
    def interval(self) -> int:
        """Seconds between heartbeats."""
        return max(1, self.patience // 4)

    def check(self) -> None:
        """Fail before anything is written if the database does not answer."""
        if self.shared:
            with self._advisory():
                pass

    def open(self) -> Any:
        """Optuna's storage. In PostgreSQL this makes the tables, so the first time has to be under `locked`."""
        if self.url is None:
            journal = self.out / JOURNAL
            backend = optuna().storages.journal.JournalFileBackend(str(journal), lock_obj=JournalLock(journal))
            try:
                return optuna().storages.JournalStorage(backend)
            except (ValueError, KeyError, TypeError, AttributeError, IndexError, AssertionError, RecursionError) as error:
                reason = f"{type(error).__name__}: {' '.join(str(error).split())[:200]}"
                raise Damaged(f"{journal} is damaged: it cannot be read ({reason})") from None
        from sqlalchemy.pool import NullPool

        with quiet(), self._reachable():
            return optuna().storages.RDBStorage(
                f"postgresql+psycopg://{self.url.partition('://')[2]}",
                engine_kwargs={
                    "poolclass": NullPool,
                    "connect_args": CONNECT,
                },  # no connection is kept open, because hours pass between two uses
                heartbeat_interval=self.interval,
                grace_period=self.patience,
            )

    @contextmanager
    def locked(self) -> Iterator[None]:
        """Only one process at a time decides about trials: of this folder, or of all that share the database."""
        with holding(self.out / ".lock"), self._advisory() if self.shared else nullcontext():
            yield

    @contextmanager
    def _advisory(self) -> Iterator[None]:
        psycopg = _psycopg()
        with self._reachable():
            connection = psycopg.connect(f"postgresql://{(self.url or '').partition('://')[2]}", autocommit=True, **CONNECT)
        try:
            with self._reachable():
                connection.execute("select pg_advisory_lock(%s)", [KEY])
            yield
        finally:
            connection.close()  # this releases the lock, as the death of the process would

    @contextmanager
    def _reachable(self) -> Iterator[None]:
        from sqlalchemy.exc import SQLAlchemyError

        try:
            yield
        except (_psycopg().Error, SQLAlchemyError) as error:
            reason = " ".join(str(error).split("\n(Background")[0].split())
            raise Unreachable(f"--storage {hide_password(self.url or '')}: {_without_secrets(reason, self.url or '')}") from None


@contextmanager
def quiet() -> Iterator[None]:
    """Hide Optuna's warning that its heartbeat is experimental; our tests cover it."""
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        yield


def hide_password(text: str) -> str:
    """Hide the password in an address, or in an option with one (--storage=...), for messages and records."""
    for secret in SECRETS:
        text = secret.sub(r"\1***", text)
    return text


def _without_secrets(reason: str, url: str) -> str:
    """Hide passwords in the driver's message, which quotes the address as given or decoded."""
    given = [found[2] for secret in SECRETS for found in secret.finditer(url)]
    for word in filter(None, [*given, *map(unquote, given)]):
        reason = reason.replace(word, "***")
    return reason
