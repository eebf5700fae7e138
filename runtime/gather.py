"""Many jobs, so many at once.

For the prompts of one call, in the Python interface and in the server. This module knows no
requests.
"""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable, Sequence
from typing import TypeVar

A = TypeVar("A")
T = TypeVar("T")


async def gather(job: Callable[[int, A], Awaitable[T]], items: Sequence[A], most: int) -> list[T]:
    """The results of a job for each item, in order.

    Args:
        job: Given an item's place and the item.
        items: Any number.
        most: Jobs that run at once; the other items wait.

    Raises:
        Exception: The first that a job raised; the others are cancelled, as they are when this is.
    """
    results: dict[int, T] = {}
    queue = iter(enumerate(items))

    async def work() -> None:
        for at, item in queue:
            results[at] = await job(at, item)

    tasks = [asyncio.create_task(work()) for _ in range(min(most, len(items)))]
    try:
        await asyncio.gather(*tasks)
    finally:
        for task in tasks:
            task.cancel()
        await asyncio.gather(*tasks, return_exceptions=True)
    return [results[at] for at in range(len(items))]
