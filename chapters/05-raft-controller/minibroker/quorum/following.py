"""Lets the partitions of a node follow the metadata, a few at a time.

To open a log, or to lead it, takes milliseconds. A change of a thousand partitions is made in slices, so that this node
votes and is heard meanwhile.
"""

import asyncio
from collections.abc import Callable, Collection

from minibroker.metadata.image import Image
from minibroker.partitions.store import Store
from minibroker.quorum.slicing import slices

_SLICE = 4


class Following:
    """Follows one authority's images with one store. `settle` lets those go on who wait for what was done."""

    def __init__(self, store: Store, image: Image, settle: Callable[[], None]) -> None:
        self._store = store
        self._wanted = image
        self._settle = settle
        self._is_behind = asyncio.Event()

    def on_image(self, _old: Image, new: Image) -> None:
        """Do at once what is quickly done; `run` does the rest in between other things."""
        is_behind = self._store.image is not self._wanted
        self._wanted = new
        if not is_behind:
            self._step()
        self._is_behind.set()

    def _step(self) -> None:
        self._store.follow(self._store.image, next(slices(self._store.image, self._wanted, _SLICE)))

    async def run(self) -> None:
        """Follow for as long as the node runs."""
        while True:
            await self._is_behind.wait()
            self._is_behind.clear()
            while self._store.image is not self._wanted:
                self._step()
                self._settle()
                await asyncio.sleep(0)


async def remove_leftovers(store: Store, removed_topics: Callable[[], Collection[bytes]]) -> None:
    """Remove what was deleted while this node was away: thousands of directories, in between other things."""
    for number, _name in enumerate(store.put_away(removed_topics)):
        if number % _SLICE == 0:
            await asyncio.sleep(0)
