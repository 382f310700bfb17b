"""Where a journal is kept: Ray's own key-value store, or a SQLite file.

A journal is a row of generations. Each begins with a snapshot; the lines that follow are appended in
batches, each under the number of its first event. A new generation replaces the one before in one step, so
that at every instant one whole generation can be read. Ray's store lives as long as the GCS keeps its state
(Redis, RocksDB); the file is for clusters whose GCS does not, and for seeing it with other tools.
"""

from __future__ import annotations

import asyncio
import sqlite3
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from pathlib import Path
from typing import Protocol, TypeVar

T = TypeVar("T")

RAY = "ray"
"""The name of Ray's store; anything else is the path of a file."""


class StoreTaken(Exception):
    """Somebody else has written at this place of the journal."""


class StoreUnusable(Exception):
    """There is no store at this place, and none can be made. The message says why, in a few words."""


@dataclass(frozen=True)
class Saved:
    """The last whole generation: its number, its snapshot, and its batches in order."""

    generation: int
    snapshot: bytes
    batches: tuple[bytes, ...] = ()


class Store(Protocol):
    """A place for one journal. What a method has returned from is durable. An error says nothing about
    whether it was done: every method may be repeated."""

    where: str
    """Its name, as `store_at` takes it."""

    async def load(self) -> Saved | None:
        """None if there is no journal. Raises StoreUnusable."""

    async def begin(self, generation: int, snapshot: bytes) -> None:
        """A new generation in the place of every earlier one. Raises StoreTaken if it exists otherwise."""

    async def append(self, generation: int, first: int, batch: bytes) -> None:
        """A batch of lines; `first` is the number of the first. Raises StoreTaken if there is another."""

    async def erase(self) -> None:
        """The whole journal."""


class KeyValues(Protocol):
    """What `RayStore` needs of server/cluster.py."""

    async def load_all(self, prefix: str) -> dict[str, bytes]: ...

    async def load(self, key: str) -> bytes | None: ...

    async def save(self, key: str, value: bytes, overwrite: bool = True) -> bool: ...

    async def erase(self, prefix: str) -> None: ...


class RayStore:
    """Ray's internal key-value store: `snapshot/<generation>`, `journal/<generation>/<first event>`."""

    def __init__(self, values: KeyValues) -> None:
        self.where = RAY
        self._values = values

    async def load(self) -> Saved | None:
        snapshots = await self._values.load_all("snapshot/")
        if not snapshots:
            return None
        last = max(snapshots)
        generation = int(last.removeprefix("snapshot/"))
        await self._erase_others(generation)
        batches = await self._values.load_all(_journal_key(generation))
        return Saved(generation, snapshots[last], tuple(batches.values()))

    async def begin(self, generation: int, snapshot: bytes) -> None:
        if generation == 0 and not await self._values.load(_snapshot_key(0)):
            await self._values.erase("journal/")  # an erasure that was not finished
        await self._save(_snapshot_key(generation), snapshot)
        await self._erase_others(generation)

    async def append(self, generation: int, first: int, batch: bytes) -> None:
        await self._save(f"{_journal_key(generation)}{first:016}", batch)

    async def erase(self) -> None:
        # The snapshots first: lines without one are no journal, a snapshot without lines is an older one.
        await self._values.erase("snapshot/")
        await self._values.erase("journal/")

    async def _save(self, key: str, value: bytes) -> None:
        if not await self._values.save(key, value, overwrite=False) and await self._values.load(key) != value:
            raise StoreTaken(key)

    async def _erase_others(self, generation: int) -> None:
        """What the last change of generations may have left: nobody reads it any more."""
        for key in await self._values.load_all("snapshot/"):
            if key != _snapshot_key(generation):
                await self._values.erase(_journal_key(int(key.removeprefix("snapshot/"))))
                await self._values.erase(key)


def _snapshot_key(generation: int) -> str:
    return f"snapshot/{generation:016}"


def _journal_key(generation: int) -> str:
    return f"journal/{generation:016}/"


class SqliteStore:
    """A SQLite file, on the node where the broker runs."""

    def __init__(self, path: Path) -> None:
        self.where = str(path)
        self._path = path
        self._thread = ThreadPoolExecutor(max_workers=1, thread_name_prefix="raypool-store")
        self._connection: sqlite3.Connection | None = None

    async def load(self) -> Saved | None:
        def load(file: sqlite3.Connection) -> Saved | None:
            row = file.execute("SELECT generation, data FROM snapshots").fetchone()
            if row is None:
                return None
            batches = file.execute("SELECT data FROM batches WHERE generation = ? ORDER BY first", row[:1])
            return Saved(row[0], row[1], tuple(data for (data,) in batches))

        return await self._do(load)

    async def begin(self, generation: int, snapshot: bytes) -> None:
        def begin(file: sqlite3.Connection) -> None:
            row = file.execute("SELECT data FROM snapshots WHERE generation >= ?", (generation,)).fetchone()
            if row is not None and row[0] != snapshot:
                raise StoreTaken(f"generation {generation}")
            file.execute("DELETE FROM snapshots")
            file.execute("DELETE FROM batches WHERE generation <> ?", (generation,))
            file.execute("INSERT INTO snapshots VALUES (?, ?)", (generation, snapshot))

        await self._do(begin)

    async def append(self, generation: int, first: int, batch: bytes) -> None:
        def append(file: sqlite3.Connection) -> None:
            if file.execute("SELECT 1 FROM snapshots WHERE generation = ?", (generation,)).fetchone() is None:
                raise StoreTaken(f"generation {generation}")
            at = (generation, first)
            row = file.execute("SELECT data FROM batches WHERE generation = ? AND first = ?", at).fetchone()
            if row is None:
                file.execute("INSERT INTO batches VALUES (?, ?, ?)", (*at, batch))
            elif row[0] != batch:
                raise StoreTaken(f"event {first}")

        await self._do(append)

    async def erase(self) -> None:
        def erase(file: sqlite3.Connection) -> None:
            file.execute("DELETE FROM snapshots")
            file.execute("DELETE FROM batches")

        await self._do(erase)

    async def _do(self, work: Callable[[sqlite3.Connection], T]) -> T:
        """In one transaction, in the thread that the connection belongs to."""

        def run() -> T:
            if self._connection is None:
                try:
                    self._connection = _opened(self._path)
                except (sqlite3.Error, OSError) as error:
                    raise StoreUnusable(str(error)) from error
            with self._connection:
                return work(self._connection)

        return await asyncio.get_running_loop().run_in_executor(self._thread, run)


def _opened(path: Path) -> sqlite3.Connection:
    path.parent.mkdir(parents=True, exist_ok=True)
    file = sqlite3.connect(path)
    file.execute("PRAGMA journal_mode = WAL")
    file.execute("PRAGMA synchronous = FULL")
    file.execute("CREATE TABLE IF NOT EXISTS snapshots (generation INTEGER PRIMARY KEY, data BLOB NOT NULL)")
    file.execute(
        "CREATE TABLE IF NOT EXISTS batches (generation INTEGER, first INTEGER, data BLOB NOT NULL, "
        "PRIMARY KEY (generation, first))"
    )
    return file


def store_at(place: str, values: KeyValues) -> Store:
    """The store that somebody named: `ray`, or the path of a file."""
    return RayStore(values) if place == RAY else SqliteStore(Path(place))
