"""Applies metadata changes to the partitions of a node, a few at a time.

Opening a log, or beginning to lead it, takes milliseconds. A change of a thousand partitions is applied in slices, so
that this node can vote and send heartbeats in between.
"""

import asyncio
from collections.abc import Callable, Collection

from minibroker.metadata.image import Image
from minibroker.partitions.store import Store
from minibroker.quorum.slicing import slices

_SLICE = 4


class Following:
    """Applies the images of an authority to a store. `settle` retries the requests that wait for a change."""

    def __init__(self, store: Store, image: Image, settle: Callable[[], None]) -> None:
        self._store = store
        self._wanted = image
        self._settle = settle
        self._is_behind = asyncio.Event()

    def on_image(self, _old: Image, new: Image) -> None:
        """Apply the first slice at once. `run` applies the other slices, and lets other tasks run in between."""
        is_behind = self._store.image is not self._wanted
        self._wanted = new
        if not is_behind:
            self._step()
        self._is_behind.set()

    def _step(self) -> None:
        self._store.follow(self._store.image, next(slices(self._store.image, self._wanted, _SLICE)))

    async def run(self) -> None:
        """Apply changes for as long as the node runs."""
        while True:
            await self._is_behind.wait()
            self._is_behind.clear()
            while self._store.image is not self._wanted:
                self._step()
                self._settle()
                await asyncio.sleep(0)


async def remove_leftovers(store: Store, removed_topics: Callable[[], Collection[bytes]]) -> None:
    """Remove, in slices, the directories of topics that were deleted while this node was down."""
    for number, _name in enumerate(store.clear_leftovers(removed_topics)):
        if number % _SLICE == 0:
            await asyncio.sleep(0)
