"""Checks that an engine holds no requests, batch slots or blocks any more."""

from __future__ import annotations

from headrace import Client

from support.clocks.waiting import wait_until


def balanced(client: Client) -> bool:
    """True if no model has requests running or waiting, and every block is free or held by the prefix cache alone."""
    stats = [stat for stat in client.engine_stats() if stat.state == "RUNNING"]
    return all(
        stat.running == stat.waiting == stat.blocks_used == 0
        and stat.blocks_total == stat.blocks_cached + stat.blocks_free
        for stat in stats
    )


def release_all(client: Client) -> None:
    """Release every request, whatever its state, and wait until all blocks are returned."""
    for request in client.list_requests():
        client.release_request(request.handle)
    wait_until(lambda: balanced(client), "blocks and requests are not back")
